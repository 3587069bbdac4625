"""Which recordings are removed when there are too many."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest
from traces import SECOND, receive, saved

from manapy import cli
from manapy.core.proc import START, stat_fields
from manapy.trace.capture import format, layout, locate, tidy
from manapy.trace.model.events import Op

DONE = {"op": Op.FINALIZE, "enter": 2 * SECOND, "exit": 2 * SECOND + 1}


def recording(name: str, when: int, **how: object) -> Path:
    folder = saved(format.root() / name, receive(1), DONE, **how)  # type: ignore[arg-type]
    for path in folder.iterdir():
        os.utime(path, (when, when))
    return folder


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    format.root().mkdir()
    return format.root()


def test_the_oldest_of_ended_jobs_go_and_no_other(root: Path) -> None:
    start = int(stat_fields(Path("/proc/self"))[START])
    here = socket.gethostname()
    kept = [
        recording("lives", 1, end=format.RUNNING, host=here, pid=os.getpid(), pid_start=start),
        recording("elsewhere", 2, end=format.RUNNING, host="elsewhere", pid=os.getpid(), pid_start=start + 1),
        recording("newest", 9),
    ]
    (root / "being made").mkdir()
    (root / "begun").mkdir()
    (root / "begun" / format.file_name(0)).write_bytes(bytes(format.PAGE))
    gone = [
        recording("killed", 3, end=format.RUNNING, host=here, pid=os.getpid(), pid_start=start + 1),
        recording("ended", 4),
    ]
    assert tidy.tidy() == []  # there is room
    assert sorted(tidy.tidy(keep=0)) == sorted(gone)
    assert {path.name for path in root.iterdir()} == {*(path.name for path in kept), "being made", "begun"}


def test_a_recording_of_a_container_stays_while_it_changes(root: Path) -> None:
    """A process there has another number here, so it isn't known whether it lives."""
    folder = recording("container", 1, end=format.RUNNING, host=socket.gethostname(), pid=2**22 + 5, pid_start=1)
    for path in folder.iterdir():
        with path.open("r+b") as file:
            file.seek(layout.FileStruct.pid_space.offset)
            file.write((5).to_bytes(8, "little"))
    assert tidy.lives(folder) and not tidy.ended() and not tidy.remove(folder)
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    assert not tidy.lives(folder) and tidy.remove(folder)


def test_recent_ones_stay_while_there_is_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other jobs that end at the same time don't remove what somebody is about to ask for."""
    now = int(time.time())
    recent = [recording(name, now - i) for i, name in enumerate(("newest", "second", "third"))]
    old = recording("old", now - 2 * int(tidy.RECENT))
    assert tidy.tidy(keep=0) == [old]
    monkeypatch.setattr(tidy, "SHARE", 1 << 60)  # the file system is full
    assert sorted(tidy.tidy(keep=0)) == sorted(recent[1:])


def test_clean_removes_recordings_of_ended_jobs_by_age_and_size(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = int(time.time())
    start = int(stat_fields(Path("/proc/self"))[START])
    alive = {"end": format.RUNNING, "host": socket.gethostname(), "pid": os.getpid(), "pid_start": start}
    recording("lives", 1, **alive)
    for name, age in (("new", 60), ("middle", 7000), ("old", 90000)):
        recording(name, now - age)
    bytes_of_one = tidy.ended()[0].bytes

    def cleaned(*words: str) -> list[str]:
        assert cli.main(["clean", "--json", *words]) == 0
        return [Path(row["folder"]).name for row in json.loads(capsys.readouterr().out)]

    def left() -> set[str]:
        return {path.name for path in root.iterdir()}

    assert cleaned("--dry-run") == ["new", "middle", "old"] and len(left()) == 4
    assert cleaned("--older", "24h") == ["old"]
    assert cleaned("--keep", f"{bytes_of_one}B") == ["middle"]
    assert left() == {"lives", "new"}
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cleaned() == []  # of other users
    monkeypatch.undo()
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(root.parent))
    assert cli.main(["clean"]) == 0
    assert "removed 1 recording, " in capsys.readouterr().err and left() == {"lives"}


def test_a_name_works_from_other_directories_and_the_one_from_here_is_meant(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [tmp_path / name for name in ("a", "b", "c")]
    for place in places:
        place.mkdir()
    recording(format.job_name(places[0] / "run"), 1)
    monkeypatch.chdir(places[2])
    assert cli.main(["why", "run"]) != 1
    assert "the only recording of that name, from another directory" in capsys.readouterr().err
    recording(format.job_name(places[1] / "run"), 2)
    assert cli.main(["why", "run"]) == 1
    assert "2 recordings have this name" in capsys.readouterr().err
    monkeypatch.chdir(places[1])
    for arguments in (["why"], ["why", "run"]):
        assert cli.main(arguments) != 1
        assert ("the only recording from this directory" in capsys.readouterr().err) == (len(arguments) == 1)


def test_nothing_that_another_user_puts_beside_the_recordings_is_in_the_way(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody may write to /dev/shm."""
    recording("mine", 1)
    (tmp_path / "manapy-trace-x").symlink_to("/nowhere")
    (tmp_path / "manapy-trace-4").symlink_to("manapy-trace-4")
    (tmp_path / "manapy-trace-5").write_text("in the way")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (tmp_path / f"manapy-trace-{os.getuid()}0").symlink_to(other)
    assert locate._roots() == [root]
    assert cli.main(["why"]) != 1
    assert "mine: the only recording of this user here" in capsys.readouterr().err


def test_what_is_in_the_place_of_the_recordings_is_no_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root.rmdir()
    root.write_text("in the way")
    assert tidy.tidy(root) == [] and locate._roots() == [root]
    assert cli.main(["why"]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_root_finds_the_recordings_of_another_user(root: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "manapy-trace-12345"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    assert locate._roots() == [root, theirs]
