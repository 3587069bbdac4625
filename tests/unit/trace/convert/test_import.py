"""`manapy trace import` on recordings that PyTorch has made (recorded/), and what `manapy why` says of them; and on
files that cannot be imported: one line each, and nothing is written."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manapy import cli
from manapy.trace.capture import rings
from manapy.trace.convert import read
from manapy.trace.convert.foreign import ForeignError, write
from manapy.trace.model.events import Op

RECORDED = Path(__file__).parent / "recorded"
DUMPED = 6 * 10**9  # ns after the last call
Reading = pytest.CaptureFixture[str]


def dumps(folder: Path, ranks: tuple[int, ...] = (0, 1, 2, 3), late: int = DUMPED) -> Path:
    """A folder with the dumps of these ranks, with the times of their files: a repository does not keep them."""
    folder.mkdir()
    for rank in ranks:
        shutil.copyfile(RECORDED / f"hung-{rank}", folder / f"hung-{rank}")
        stamp(folder / f"hung-{rank}", late)
    return folder


def stamp(path: Path, late: int) -> None:
    newest = max(entry["time_created_ns"] for rank in range(4) for entry in load(RECORDED / f"hung-{rank}")["entries"])
    os.utime(path, ns=(newest + late, newest + late))


def load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def profiles(folder: Path) -> Path:
    folder.mkdir()
    for path in RECORDED.glob("slow-*"):
        shutil.copyfile(path, folder / path.name)
    return folder


def imported(*arguments: object) -> int:
    return cli.main(["trace", "import", *map(str, arguments)])


def said(out: Path, capsys: Reading) -> tuple[int, dict[str, Any]]:
    """What `manapy why` says of a recording: its exit code and its first verdict."""
    capsys.readouterr()
    code = cli.main(["why", str(out), "--json"])
    return code, json.loads(capsys.readouterr().out)["verdicts"][0]


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_the_rank_that_others_wait_for_is_late(form: str, tmp_path: Path, capsys: Reading) -> None:
    source, out = dumps(tmp_path / "dumps"), tmp_path / "out"
    if form == "json":
        for path in list(source.iterdir()):
            (source / f"{path.name}.json").write_text(json.dumps(load(path)))
            stamp(source / f"{path.name}.json", DUMPED)
            path.unlink()
    assert imported(source, "--out", out, "--ranks", "4") == 0
    assert "58 records of 4 ranks" in capsys.readouterr().out
    code, verdict = said(out, capsys)
    assert code == 3 and verdict["state"] == "late" and verdict["rank"] == 2
    assert "has not called MPI_Iallreduce on default_pg (call 7 there) yet" in verdict["sentence"]
    assert verdict["action"] == "look at the stack of the process of rank 2 (py-spy dump)"


def test_members_of_groups_that_no_dump_lists(tmp_path: Path) -> None:
    """Gloo: those that have used a group, if an operation of it has ended for all of these."""
    assert imported(dumps(tmp_path / "dumps"), "--out", tmp_path / "out", "--ranks", "4") == 0
    assert {comm.name: comm.members.tolist() for comm in rings.read(tmp_path / "out").comms} == {
        "default_pg": [0, 1, 2, 3],
        "process group 1": [0, 1],
        "process group 2": [2, 3],
    }
    source = dumps(tmp_path / "unended", (0, 1))
    for rank in (0, 1):
        found = load(source / f"hung-{rank}")
        for entry in found["entries"]:
            entry["retired"] &= entry["process_group"][0] == "0"
        save(source / f"hung-{rank}", found)
    assert imported(source, "--out", tmp_path / "unknown", "--ranks", "4") == 0
    unknown = rings.read(tmp_path / "unknown")
    assert [(comm.name, comm.members.tolist()) for comm in unknown.comms] == [("default_pg", [0, 1, 2, 3])]
    assert set(unknown.events["comm"][unknown.events["op"] == Op.BCAST].tolist()) == {-1}


def test_dumps_say_nothing_about_speed(tmp_path: Path, capsys: Reading) -> None:
    assert imported(dumps(tmp_path / "dumps", late=10**8), "--out", tmp_path / "out", "--ranks", "4") == 0
    code, verdict = said(tmp_path / "out", capsys)
    assert code == 1 and verdict["state"] == "unknown"
    assert "the recording doesn't say how long calls took" in verdict["sentence"]


def test_the_rank_without_a_dump_is_not_accused_and_nor_are_others(tmp_path: Path, capsys: Reading) -> None:
    assert imported(dumps(tmp_path / "dumps", (0, 1, 3)), "--out", tmp_path / "out", "--ranks", "4") == 0
    assert "the files contain nothing of rank 2" in capsys.readouterr().err
    code, verdict = said(tmp_path / "out", capsys)
    assert code == 1 and verdict["rank"] is None and "rank 2, which has no trace" in verdict["sentence"]


def test_files_that_were_copied_later_do_not_make_a_rank_late(tmp_path: Path, capsys: Reading) -> None:
    source = dumps(tmp_path / "dumps", late=3 * 86400 * 10**9)
    assert imported(source, "--out", tmp_path / "out", "--ranks", "4") == 0
    assert "the times of the files can't be those of the dumps" in capsys.readouterr().err
    assert said(tmp_path / "out", capsys)[1]["state"] == "unknown"


def test_a_job_is_shown_as_it_was_at_the_first_dump(tmp_path: Path, capsys: Reading) -> None:
    """What others have done after the dump of a rank can't make it late."""
    source = dumps(tmp_path / "dumps")
    stamp(source / "hung-2", 10**8)
    assert imported(source, "--out", tmp_path / "out", "--ranks", "4") == 0
    assert said(tmp_path / "out", capsys)[1]["state"] == "unknown"


def moved(source: Path, rank: int, by: int, calls: int = 0) -> None:
    """Change the times of a dump and of its file, ns, and the numbers of its operations."""
    found = load(source / f"hung-{rank}")
    for entry in found["entries"]:
        entry["time_created_ns"] += by
        entry["collective_seq_id"] += calls
    save(source / f"hung-{rank}", found)
    stamp(source / f"hung-{rank}", DUMPED + by)


@pytest.mark.parametrize("rank,hours,calls", [(1, 1, 0), (2, -1, 0), (2, 3, 0), (2, -1, 5000), (1, -200, 0)])
def test_a_dump_of_another_run_or_clock_accuses_nobody(
    rank: int, hours: int, calls: int, tmp_path: Path, capsys: Reading
) -> None:
    """Dumps of an earlier run may still be in the folder."""
    source = dumps(tmp_path / "dumps")
    moved(source, rank, hours * 3600 * 10**9, calls)
    assert imported(source, "--out", tmp_path / "out", "--ranks", "4") == 0
    assert f"hung-{rank} is left out: its times are" in capsys.readouterr().err
    code, verdict = said(tmp_path / "out", capsys)
    if rank == 2:
        assert code == 1 and verdict["rank"] is None and "rank 2, which has no trace" in verdict["sentence"]
    else:
        assert code == 3 and verdict["rank"] == 2


def test_clocks_that_differ_a_little(tmp_path: Path, capsys: Reading) -> None:
    source = dumps(tmp_path / "dumps")
    moved(source, 1, 300_000_000)
    assert imported(source, "--out", tmp_path / "out", "--ranks", "4") == 0
    assert said(tmp_path / "out", capsys)[1]["rank"] == 2


def test_the_slow_rank_in_traces_of_a_profiler(tmp_path: Path, capsys: Reading) -> None:
    assert imported(profiles(tmp_path / "profiles"), "--out", tmp_path / "out") == 0
    assert "messages, whose peers the profiler does not name" in capsys.readouterr().err
    code, verdict = said(tmp_path / "out", capsys)
    assert code == 3 and verdict["state"] == "slow" and verdict["rank"] == 1
    assert verdict["cost_ns"] > 10**9


def test_a_profile_of_which_one_rank_is_missing_accuses_nobody(tmp_path: Path, capsys: Reading) -> None:
    source = profiles(tmp_path / "profiles")
    (source / "slow-3.json.gz").unlink()
    assert imported(source, "--out", tmp_path / "out") == 0
    assert said(tmp_path / "out", capsys)[0] == 1


def test_the_report_shows_an_imported_recording(tmp_path: Path) -> None:
    assert imported(profiles(tmp_path / "profiles"), "--out", tmp_path / "out") == 0
    assert cli.main(["trace", "report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    assert "keeps the others waiting" in (tmp_path / "page.html").read_text()


# ---- files that cannot be imported


class Evil:
    """Runs a command when it is loaded by a pickle that may call anything."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def a_dump(**entry: Any) -> dict[str, Any]:
    """A dump of one rank with one entry."""
    found = load(RECORDED / "hung-0")
    found["entries"] = [{**found["entries"][0], **entry}]
    return found


def save(path: Path, data: Any) -> None:
    path.write_bytes(pickle.dumps(data, protocol=2))


def break_json(folder: Path) -> None:
    (folder / "rank0.json").write_text('{"traceEvents": [{"ph": "X"')


def two_jobs(folder: Path) -> None:
    for rank, members in enumerate(("[0, 1]", "[0, 2]")):
        save(folder / f"dump_{rank}", {**a_dump(), "pg_config": {"0": {"name": "0", "desc": "x", "ranks": members}}})


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "code": (lambda f: save(f / "dump_0", {**a_dump(), "more": Evil(f / "ran")}), "this pickle contains code"),
    "truncated pickle": (lambda f: (f / "dump_0").write_bytes(pickle.dumps(a_dump())[:-40]), "damaged or truncated"),
    "another pickle": (lambda f: save(f / "dump_0", [1, 2]), "no dump of a Flight Recorder"),
    "version": (lambda f: save(f / "dump_0", {**a_dump(), "version": "3.1"}), "a dump of version 3.1"),
    "entries": (lambda f: save(f / "dump_0", {**a_dump(), "entries": [7]}), "entry 0 is damaged"),
    "time": (lambda f: save(f / "dump_0", a_dump(time_created_ns=4)), "its time is impossible"),
    "number": (lambda f: save(f / "dump_0", a_dump(record_id="x")), "record_id is no possible number"),
    "no rank": (lambda f: save(f / "dump", a_dump()), "does not end with the number of its rank"),
    "equal ranks": (lambda f: [save(f / n, a_dump()) for n in ("a_1", "b_1")], "are both of rank 1"),
    "huge rank": (lambda f: save(f / "dump_99999999999", a_dump()), "is no rank"),
    "two jobs": (two_jobs, "two jobs?"),
    "truncated JSON": (break_json, "damaged or truncated"),
    "another JSON": (lambda f: (f / "rank0.json").write_text("{}"), "of no known tool"),
    "deep JSON": (lambda f: (f / "rank0.json").write_text("[" * 100000), "damaged or truncated"),
    "damaged events": (lambda f: (f / "rank0.json").write_text('{"traceEvents": [3]}'), "traceEvents are damaged"),
    "text": (lambda f: (f / "log.txt").write_text("hello"), "of no known tool"),
    "empty": (lambda f: (f / "rank0.json").touch(), "empty"),
    "truncated gzip": (lambda f: (f / "0.json.gz").write_bytes(gzip.compress(os.urandom(999))[:-300]), "truncated"),
    "an old profile": (
        lambda f: (f / "rank0.json").write_text(
            '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "ts": 1, "dur": 2}]}'
        ),
        "NCCL's kernels do not name their process group",
    ),
    "two tools": (
        lambda f: [save(f / "dump_0", a_dump()), profiles(f / "p"), (f / "p/slow-0.json.gz").rename(f / "x")],
        "are of different tools",
    ),
    "nothing": (lambda f: None, "an empty folder"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_a_bad_file_gives_one_line(what: str, tmp_path: Path, capsys: Reading) -> None:
    source, out = tmp_path / "files", tmp_path / "out"
    source.mkdir()
    make, line = BAD[what]
    make(source)
    assert imported(source, "--out", out, "--ranks", "4") == 1
    text = capsys.readouterr().err
    assert line in text and text.count("\n") == 1
    assert not out.exists() and not (source / "ran").exists()
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("compressed", [False, True])
def test_huge_files(compressed: bool, tmp_path: Path, capsys: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small compressed file may be huge, too."""
    monkeypatch.setattr(read, "LARGEST", 10_000)
    content = b"[" + b" " * 100_000 + b"]"
    (tmp_path / "rank0.json").write_bytes(gzip.compress(content) if compressed else content)
    assert imported(tmp_path / "rank0.json", "--out", tmp_path / "out") == 1
    assert "larger than" in capsys.readouterr().err


def test_long_names(tmp_path: Path, capsys: Reading) -> None:
    out = tmp_path / ("\N{GREEK SMALL LETTER ALPHA}" * 100)
    assert imported(dumps(tmp_path / "dumps"), "--out", out, "--ranks", "4") == 0
    assert said(out, capsys)[0] == 3


def test_what_exists_is_not_overwritten(tmp_path: Path, capsys: Reading) -> None:
    (tmp_path / "out").mkdir()
    assert imported(dumps(tmp_path / "dumps"), "--out", tmp_path / "out", "--ranks", "4") == 1
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("given,line", [((), "give --ranks N"), (("--ranks", "3"), "cannot have had 3 ranks")])
def test_the_number_of_ranks(given: tuple[str, ...], line: str, tmp_path: Path, capsys: Reading) -> None:
    assert imported(dumps(tmp_path / "dumps"), "--out", tmp_path / "out", *given) == 1
    assert line in capsys.readouterr().err


def whole(name: str) -> Any:
    """The content of a recorded file, as JSON has it."""
    if name.startswith("hung"):
        return json.loads(json.dumps(load(RECORDED / name)))
    return json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))


def places(data: Any) -> list[tuple[Any, Any]]:
    """All values in it: the container and the key of each."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [one for key, value in items for one in ((data, key), *places(value))]


def refused_or_read(path: Path) -> None:
    """Whatever is wrong with a file: a recording that can be read, or one line."""
    try:
        write(read.read([path], 4), path.with_name("out"))
    except ForeignError as error:
        assert "\n" not in str(error)
    else:
        cli.main(["why", str(path.with_name("out"))])


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just([]), st.just({}), st.just([[7]]),
    st.sampled_from([1 << 40, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 10**400, "1e999", "0", "[0, 1]", "default_pg"]),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_files_with_odd_values(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["hung-0", "slow-0"]))
    found = whole(name)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(found)))
        container[key] = data.draw(ODD)
    path = tmp_path_factory.mktemp("odd") / f"{name}.json"
    path.write_text(json.dumps(found))
    refused_or_read(path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["hung-0", "slow-0"]))
    content = bytearray((RECORDED / name).read_bytes() if name == "hung-0" else json.dumps(whole(name)).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    refused_or_read(path)
