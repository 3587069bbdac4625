"""Redundancy of local storage: the codes, how blocks lie on hosts, and which hosts are combined."""

from __future__ import annotations

import builtins
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manapy.ckpt.redundancy import code, failure_groups, policy
from manapy.ckpt.redundancy.image_stream import FolderSlice
from manapy.ckpt.redundancy.stripes import NAME, StripeGroup
from manapy.core.errors import CheckpointError

shapes = st.sampled_from(["xor", "rs:1+1", "rs:1+2", "rs:2+2", "rs:4+2", "rs:3+3", "rs:5+1"])


@given(st.data(), st.integers(1, 9), st.integers(1, 4), st.integers(0, 200))
def test_any_blocks_give_all_others(data: st.DataObject, number: int, spare: int, size: int) -> None:
    blocks = [data.draw(st.binary(min_size=size, max_size=size)) for _ in range(number)]
    whole = dict(enumerate(blocks))
    for i in range(number, number + spare):
        whole[i] = code.compute(dict(enumerate(blocks)), number, spare, i)
    kept = data.draw(st.permutations(range(number + spare)))[:number]
    for lost in set(whole) - set(kept):
        assert code.compute({i: whole[i] for i in kept}, number, spare, lost) == whole[lost]


def test_too_few_blocks() -> None:
    with pytest.raises(ValueError, match="1 blocks instead of 2"):
        code.compute({0: b"a"}, 2, 1, 1)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fake(name: str, *more: Any) -> Any:
        if name == "zfec":
            raise ImportError("No module named 'zfec'")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", fake)
    assert code.complaint(1) == "" and "manapy's extra 'levels'" in code.complaint(2)
    with pytest.raises(CheckpointError, match="needs the Python package zfec"):
        code.compute({0: b"a"}, 1, 2, 1)


@given(st.integers(2, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1))))
def test_stripes(shape: tuple[int, int]) -> None:
    """Each member has one block of each stripe, of data or a spare one, and each spare block has one holder."""
    n, spare = shape
    group = StripeGroup(0, tuple(f"node-{i:05d}" for i in range(n)), spare)
    held = [block for member in range(n) for block in group.held(member)]
    assert len(held) == len(set(held)) == n * spare
    for stripe in range(n):
        holders = group.holders(stripe)
        assert sorted([*group.givers(stripe), *holders]) == list(range(n))
        for number, member in enumerate(holders, group.data):
            assert (stripe, number) in group.held(member)
            assert NAME.match(group.spare_name(stripe, number))
    for member in range(n):
        assert len(group.stripes(member)) == group.data
        assert all(member in group.givers(stripe) for stripe in group.stripes(member))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[str], dict[str, str]]:
    """Hosts, and sets of some of them that fail together."""
    hosts = [f"h{i}" for i in range(draw(st.integers(1, 30)))]
    names = draw(st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=len(hosts), max_size=len(hosts)))
    return hosts, {host: name for host, name in zip(hosts, names, strict=True) if name}


@given(clusters(), shapes)
def test_groups(cluster: tuple[list[str], dict[str, str]], text: str) -> None:
    hosts, sets = cluster
    option = policy.parse(text)
    try:
        groups = option.groups(hosts, sets)
    except CheckpointError:
        largest = max(Counter(sets.values()).values(), default=1)
        assert len(hosts) <= option.spare or largest > len(hosts) // (option.spare + 1) * option.spare
        return
    assert sorted(host for group in groups for host in group) == sorted(hosts)
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1 and min(sizes) > option.spare
    assert max(sizes) <= option.size or len(hosts) < (len(groups) + 1) * (option.spare + 1)
    for group in groups:
        assert max(Counter(sets[host] for host in group if host in sets).values(), default=0) <= option.spare


@given(clusters())
def test_partners(cluster: tuple[list[str], dict[str, str]]) -> None:
    hosts, sets = cluster
    option = policy.parse("partner")
    try:
        partners = option.partners(hosts, sets)
    except CheckpointError:
        assert 2 * max(Counter(sets.values()).values(), default=1) > len(hosts)
        return
    assert sorted(partners) == sorted(partners.values()) == sorted(hosts)
    for host, partner in partners.items():
        assert host != partner and (host not in sets or sets[host] != sets.get(partner))


def test_next_host_is_the_partner() -> None:
    assert policy.parse("partner").partners(["a", "b", "c"], {}) == {"a": "b", "b": "c", "c": "a"}


@pytest.mark.parametrize("text", ["", "raid", "rs", "rs:4", "rs:0+1", "rs:4+0", "rs:60+5", "xor:3"])
def test_no_such_redundancy(text: str) -> None:
    with pytest.raises(ValueError, match="--redundancy needs none, partner, xor or rs:K\\+M"):
        policy.parse(text)


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(0, 250), st.integers(0, 60), st.integers(1, 9)
)
def test_block_of_a_folder(
    tmp_path_factory: pytest.TempPathFactory, images: list[bytes], offset: int, count: int, piece: int
) -> None:
    """Any part of the text that the images of a folder are, with zeroes after the last one."""
    folder = tmp_path_factory.mktemp("node")
    for rank, data in enumerate(images):
        (folder / f"rank-{rank:05d}.img").write_bytes(data)
    (folder / "rank-00000.img.part").write_bytes(b"not complete")
    block = FolderSlice(folder, offset, count)
    read = b""
    while block.left:
        read += block.read(piece)
    block.close()
    assert read == (b"".join(images) + bytes(400))[offset : offset + count]


def test_failure_groups(tmp_path: Path) -> None:
    file = tmp_path / "groups"
    file.write_text("# power\nrack 1: a b.x\n\nrack 2: c  # more\n")
    assert failure_groups.read(file, ["a.x", "b.x", "b.y", "c", "d"]) == {
        "a.x": "rack 1",
        "b.x": "rack 1",
        "c": "rack 2",
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names none of the job's hosts, such as a"),
        ("r: b", "names none of the job's hosts"),
        ("a b", "line 1 is not NAME: HOST HOST"),
        ("r:", "line 1 is not NAME: HOST HOST"),
        (": a", "line 1 is not NAME: HOST HOST"),
        ("r: a\ns: a", "line 2: a is also in r: a host has one group"),
    ],
)
def test_bad_failure_groups(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "groups"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=complaint):
        failure_groups.read(file, ["a"])


def test_no_failure_groups(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        failure_groups.read(tmp_path / "groups", ["a"])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="not a text"):
        failure_groups.read(tmp_path / "binary", ["a"])
