"""The lines between agents, programs and commands: parsing, and that C and Python agree."""

from __future__ import annotations

from pathlib import Path

import layout
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manapy.rdma import kv_protocol

KINDS = {**kv_protocol.FROM_PROGRAM, **kv_protocol.FROM_COMMAND}
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=kv_protocol.KEY_MAX)
VALUES = st.binary(min_size=1, max_size=kv_protocol.VALUE_MAX)


def test_constants(tmp_path: Path, root: Path) -> None:
    """Also the service's name, letter by letter."""
    names = {
        "VERSION": "SHIFT_KV_VERSION",
        "LINE_MAX": "SHIFT_KV_LINE_MAX",
        "KEY_MAX": "SHIFT_KV_KEY_MAX",
        "VALUE_MAX": "SHIFT_KV_VALUE",
        "BATCH": "SHIFT_KV_BATCH",
    }
    word = kv_protocol.AGENT.word
    letters = {f"letter{i}": f"SHIFT_KV_SERVICE[{i}]" for i in range(len(word) + 1)}
    (tmp_path / "both.h").write_text('#include "kv.h"\n#include "kv_protocol.h"\n')
    (tmp_path / "include").mkdir()
    for name in ("kv.h", "kv_protocol.h"):
        (tmp_path / name).write_bytes((root / "lowerhalf" / "rdma" / "kv" / name).read_bytes())
    values = layout.c_values(tmp_path, tmp_path, "both.h", {**names, **letters})
    assert {name: getattr(kv_protocol, name) for name in names} == {name: values[name] for name in names}
    assert [values[name] for name in letters] == [*word.encode(), 0]


def test_every_request_of_the_header_is_known(root: Path) -> None:
    text = (root / "lowerhalf" / "rdma" / "kv" / "kv_protocol.h").read_text()
    listed = {
        line.split()[2]
        for line in text.splitlines()
        if line.startswith(" *   <n> ") and not line.startswith(" *   <n> OK")
    }
    assert listed == set(KINDS)


@given(st.integers(0, 10**18 - 1), KEYS, VALUES)
def test_a_put_is_read_as_it_was_written(number: int, key: str, value: bytes) -> None:
    request = kv_protocol.parse(f"{number} PUT {key} {value.hex()}\n".encode(), kv_protocol.FROM_PROGRAM)
    assert request == (number, "PUT", [key, value.hex()]) and bytes.fromhex(request.fields[1]) == value


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=kv_protocol.BATCH))
def test_several_keys(pairs: dict[str, bytes]) -> None:
    fields = [field for key, value in pairs.items() for field in (key, value.hex())]
    assert kv_protocol.parse(f"1 PUT {' '.join(fields)}".encode(), kv_protocol.FROM_PROGRAM).fields == fields
    assert kv_protocol.parse(f"1 GET {' '.join(pairs)}".encode(), kv_protocol.FROM_PROGRAM).fields == list(pairs)


@given(st.dictionaries(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), st.integers()))
def test_an_event_keeps_its_blanks(data: dict[str, int]) -> None:
    import json

    text = json.dumps(data, ensure_ascii=False)
    assert kv_protocol.parse(f"1 EVENT {text}".encode(), kv_protocol.FROM_PROGRAM).fields == [text]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_malformed(line: bytes) -> None:
    for kinds in (kv_protocol.FROM_PROGRAM, kv_protocol.FROM_COMMAND):
        try:
            request = kv_protocol.parse(line, kinds)
        except kv_protocol.Malformed as error:
            assert "\n" not in str(error)
        else:
            assert request.kind in kinds


@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=8), max_size=4),
)
def test_fields_are_what_they_must_be(kind: str, fields: list[str]) -> None:
    """Nothing is accepted that has a wrong form: a blank, an empty field, a slash in a job's name."""
    try:
        request = kv_protocol.parse(" ".join(["1", kind, *fields]).encode(), KINDS)
    except kv_protocol.Malformed as error:
        assert error.number == 1
        return
    times = len(request.fields) // KINDS[kind] if kind in kv_protocol.SEVERAL else 1
    assert len(request.fields) == times * KINDS[kind] and all(request.fields)
    if kind == "HELLO":
        assert kv_protocol.is_job(request.fields[0]) and "/" not in request.fields[0]


NOT_WELL_FORMED = [
    b"",
    b"PUT k 00",
    b"-1 GET k",
    b"1 get k",
    b"1 GET",
    b"1 GET " + b"k " * 64 + b"k",
    b"1 GET a  b",
    b"1 GET a\tb",
    b"1 GET \xff",
    b"1 GET " + b"k" * 256,
]
NOT_WELL_FORMED += [
    b"1 PUT k 0",
    b"1 PUT a 00 b",
    b"1 PUT k 0G",
    b"1 PUT k " + b"00" * 257,
    b"1 BYE now",
    b"1 STATUS",
    b"1 EVENT 7",
]


@pytest.mark.parametrize("line", NOT_WELL_FORMED)
def test_malformed(line: bytes) -> None:
    with pytest.raises(kv_protocol.Malformed):
        kv_protocol.parse(line, kv_protocol.FROM_PROGRAM)


def test_roles_are_kept_apart() -> None:
    with pytest.raises(kv_protocol.Malformed):
        kv_protocol.parse(b"1 MOVE * * rxa0", kv_protocol.FROM_PROGRAM)
    with pytest.raises(kv_protocol.Malformed):
        kv_protocol.parse(b"1 PUT k 00", kv_protocol.FROM_COMMAND)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "..", ".a", "-a", "a" * 65, "ä"])
def test_no_job(name: str) -> None:
    assert not kv_protocol.is_job(name)
