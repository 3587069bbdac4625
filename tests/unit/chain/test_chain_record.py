"""The history holds only whole lines, whatever happens; and a directory that is not a chain gives a clear message."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from histories import History
from hypothesis import given, settings
from hypothesis import strategies as st
from manapy.chain import record
from manapy.chain.record import Chain
from manapy.core.errors import ManapyError

texts = st.text(max_size=30)
values = st.dictionaries(
    st.sampled_from(["reason", "path", "code"]), st.one_of(texts, st.integers(), st.none(), st.lists(texts)), max_size=3
)


@given(st.lists(st.tuples(st.sampled_from(["note", "checkpoint", "end"]), st.integers(1, 3), values), max_size=6))
@settings(deadline=None, max_examples=50)
def test_what_was_appended_is_read(events: list[tuple[str, int, dict[str, object]]]) -> None:
    with tempfile.TemporaryDirectory() as where:
        chain = Chain(Path(where), {})
        written = [chain.append(kind, attempt, **fields) for kind, attempt, fields in events]
        assert chain.events() == written
        assert chain.events("note") == [e for e in written if e["event"] == "note"]
        assert chain.events("end", 2) == [e for e in written if (e["event"], e["attempt"]) == ("end", 2)]
        assert chain.events(attempt=1) == [e for e in written if e["attempt"] == 1]


@given(st.lists(values, min_size=1, max_size=4), st.floats(0, 1))
@settings(deadline=None, max_examples=100)
def test_a_line_torn_by_a_crash(events: list[dict[str, object]], part: float) -> None:
    """The history may be cut off at any byte. The whole lines stay, the torn one is left out (unless only its end of
    line is missing), and later lines are whole."""
    with tempfile.TemporaryDirectory() as where:
        chain = Chain(Path(where), {})
        written = [chain.append("note", 1, **fields) for fields in events]
        path = Path(where) / "history.jsonl"
        whole = path.read_bytes()
        cut = round(part * len(whole))
        path.write_bytes(whole[:cut])
        ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
        kept = sum(end - 1 <= cut for end in ends)
        assert chain.events() == written[:kept]
        later = chain.append("end", 1)
        assert chain.events() == [*written[:kept], later]


@pytest.mark.parametrize("garbage", [b"\0" * 64, b"\xff\xfe", b"[1, 2]", b"17", b'{"time": 1}', b"{" * 20])
def test_garbage_in_the_history(history: History, garbage: bytes) -> None:
    """As a file system may leave it after a power failure."""
    first = history.chain.append("note", 1, text="a")
    with (history.chain.dir / "history.jsonl").open("ab") as stream:
        stream.write(garbage)
    second = history.chain.append("note", 1, text="b")
    assert history.chain.events() == [first, second]


def test_several_processes_append(history: History) -> None:
    code = (
        "import sys; from pathlib import Path; from manapy.chain.record import Chain; chain = "
        "Chain(Path(sys.argv[1]), {})\n"
        "for i in range(40): chain.append('note', int(sys.argv[2]), i=i, text='x' * 500)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(history.chain.dir), str(n)]) for n in (1, 2, 3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    for writer in (1, 2, 3):
        assert [event["i"] for event in history.chain.events("note", writer)] == list(range(40))
    for line in (history.chain.dir / "history.jsonl").read_bytes().splitlines():
        assert not line or json.loads(line)["text"] == "x" * 500


def test_lock_keeps_others_out(history: History, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from manapy.chain.record import Chain\nprint('there', flush=True)\n"
        "with Chain(Path(sys.argv[1]), {}).locked(): print('in', flush=True)"
    )
    with history.chain.locked():
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(history.chain.dir)], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None and other.stdout.readline() == "there\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
    assert other.communicate(timeout=60)[0] == "in\n"


def test_private(history: History) -> None:
    history.begin()
    assert history.chain.dir.stat().st_mode & 0o777 == 0o700
    assert (history.chain.dir / "history.jsonl").stat().st_mode & 0o777 == 0o600


def test_over(history: History) -> None:
    chain = history.chain
    assert chain.over() is None
    history.attempt("left")
    assert chain.over() is None
    history.note("stopped", reason="interrupted")
    over = chain.over()
    assert over is not None and over["reason"] == "interrupted"
    history.begin()
    assert chain.over() is None, "it goes on"
    history.note("finished", code=3)
    over = chain.over()
    assert over is not None and over["code"] == 3


def test_create_where_a_chain_is(history: History) -> None:
    with pytest.raises(ManapyError, match="already contains a chain"):
        record.create(history.chain.dir, {})


def test_create_where_nothing_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "file" / "chain", tmp_path / "file", Path("/proc/nowhere")):
        with pytest.raises(ManapyError, match="cannot make the chain's directory") as caught:
            record.create(where, {"command": ["a"]})
        assert "\n" not in str(caught.value) and str(where)[:5] in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "null",
        '"text"',
        '{"format": 9}',
        '{"format": 1}',
        '{"format": 1, "command": "sh", "cwd": "/", "created": 1}',
        '{"format": 1, "command": ["sh"], "cwd": "/"}',
        "\0\0",
    ],
)
def test_read_damaged(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chain.json").write_text(text)
    with pytest.raises(ManapyError, match=r"chain\.json: (format|not a chain's file)") as caught:
        record.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ManapyError, match="no chain in .*: name its directory"):
        record.find(None)
    with pytest.raises(ManapyError, match="nothing: no such chain"):
        record.find("nothing")
    with pytest.raises(ManapyError, match="no such chain"):
        record.find(str(tmp_path))
    for name in ("b", "a", "c"):
        History(tmp_path / name)
    chain = record.read(tmp_path / "a")
    chain.record["created"] += 1000
    chain.write()
    assert record.find(None).dir == tmp_path / "a", "the newest"
    assert record.find("b").dir == tmp_path / "b"
    assert json.loads((tmp_path / "a" / "chain.json").read_text()) == chain.record
    assert not list(tmp_path.glob("a/*.new")) and os.listdir("a") == ["chain.json"]


def test_attributes_that_a_host_remembers(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """stat() may give an old size for a minute (NFS). Only an opened file has the server's."""
    history.begin()
    before = history.chain.events()
    file = history.chain.dir / "history.jsonl"
    old, real = file.stat(), Path.stat
    with file.open("a") as other:
        other.write('{"event": "note", "attempt": 1}\n')
    monkeypatch.setattr(Path, "stat", lambda path, **options: old if path == file else real(path, **options))
    assert len(history.chain.events()) == len(before) + 1


@pytest.mark.parametrize(("where", "call"), [(Path, "open"), (os, "fstat")])
def test_an_error_of_the_file_system(
    history: History, monkeypatch: pytest.MonkeyPatch, where: object, call: str
) -> None:
    """The events read before remain. A process that has read none says what is wrong."""

    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    history.begin()
    before = history.chain.events()
    with (history.chain.dir / "history.jsonl").open("a") as other:
        other.write('{"event": "note", "attempt": 1}\n')
    with monkeypatch.context() as broken:
        broken.setattr(where, call, fail)
        assert history.chain.events() == before
        with pytest.raises(OSError, match="Input/output error"):
            Chain(history.chain.dir, {}).events()
    assert len(history.chain.events()) == len(before) + 1


class Disk:
    """A file system that takes ``room`` bytes more, and then says that it is full. ``synced`` False: fsync fails, after
    all was written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self.synced = 10**9, True
        write, fsync = os.write, os.fsync

        def limited(fd: int, data: bytes) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done = write(fd, data[: self.room])
            self.room -= done
            return done

        def sync(fd: int) -> None:
            if not self.synced:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(fd)

        monkeypatch.setattr(os, "write", limited)
        monkeypatch.setattr(os, "fsync", sync)


@pytest.mark.parametrize(("lines", "more"), [(0, 0), (0, 1), (1, -1), (1, 0), (1, 1), (2, -1), (2, 0)])
def test_events_that_were_half_written(
    history: History, monkeypatch: pytest.MonkeyPatch, lines: int, more: int
) -> None:
    """Of several that wait, those that came to the disk whole are not written again."""
    disk = Disk(monkeypatch)
    disk.room = 0
    written = [history.chain.append("note", 1, text=f"{number}" * 40) for number in range(3)]
    disk.room = lines * (len(json.dumps(written[0])) + 1) + more
    written.append(history.chain.append("end", 1))
    assert history.chain.events() == written
    disk.room = 10**9
    history.chain.ensure(0)
    assert history.chain.events() == record.Chain(history.chain.dir, {}).events() == written


def test_events_that_are_perhaps_not_durable(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.synced = False
    history.begin()
    assert history.chain.attempts() == 1
    with pytest.raises(ManapyError, match="history cannot be written .*Input/output error"):
        history.chain.ensure(0)
    disk.synced = True
    history.chain.ensure(0)
    assert [event["event"] for event in record.Chain(history.chain.dir, {}).events()] == ["attempt"]


def test_directory_to_which_others_may_write(tmp_path: Path) -> None:
    """They could replace what is run."""
    where = tmp_path / "shared"
    where.mkdir()
    where.chmod(0o775)
    with pytest.raises(ManapyError, match="shared is writable by others"):
        record.create(where, {"command": ["a"]})
    assert not list(where.iterdir())


@pytest.mark.parametrize("name", [".", "chain.json", "script"])
def test_what_others_may_have_written(history: History, name: str) -> None:
    where = history.chain.dir
    script = where / "script"
    script.touch(0o700)
    history.chain.record |= {"kind": "slurm", "command": [str(script)]}
    history.chain.write()
    assert record.read_own(where).dir == where
    (where / name).chmod(0o777)
    with pytest.raises(ManapyError, match=f"{(where / name)} is writable by others"):
        record.read_own(where)
