"""Defaults of options from configuration files: what `manapy` and manapy-launch read, and what they refuse."""

from __future__ import annotations

import argparse
import json
import os
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as some
from manapy import cli
from manapy.cli.shared import configuration, configured, defaults
from manapy.core.errors import UsageError

LAUNCH = Path(sys.executable).parent / "manapy-launch"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The three files, none of which exists."""
    for folder in ("here", "user"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("MANAPY_CONFIG", raising=False)
    monkeypatch.setattr(configuration, "SITE", tmp_path / "site.toml")
    return configuration.places()


def options(name: str, *words: str) -> argparse.Namespace:
    """The options with which a command would run."""
    from manapy.cli import _main

    return _main._options(name, list(words))


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line with which a command refuses the files."""
    assert cli.main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_a_stronger_file_replaces_a_weaker_one_and_the_command_line_all_files(places: dict[str, Path]) -> None:
    normal = options("why").patience
    for minutes, path in enumerate(places.values(), 1):
        path.write_text(f'[why]\npatience = "{minutes}m"\n')
        assert options("why").patience == 60 * minutes != normal
    assert options("why", "--patience", "9s").patience == 9


def test_files_set_different_options(places: dict[str, Path]) -> None:
    places["site"].write_text("[why]\nwaits = true\n")
    places["job"].write_text("[why]\nevery = 7\n[trace.record]\nlimit = '5GB'\nout = 'there'\n[trace]\n")
    found = options("why")
    assert (found.waits, found.every) == (True, 7.0)
    record = options("trace", "record")
    assert (record.limit, record.out) == (5 * 10**9, Path("there"))


def test_what_a_file_turns_on_can_be_turned_off(places: dict[str, Path]) -> None:
    places["user"].write_text("[why]\nwaits = true\n[stop]\nno-checkpoint = true\n")
    assert options("why").waits and not options("why", "--no-waits").waits
    assert options("stop").no_checkpoint and not options("stop", "--checkpoint").no_checkpoint


def test_options_that_exclude_each_other(places: dict[str, Path]) -> None:
    places["user"].write_text("[stop]\nnext = true\n")
    assert options("stop").next
    assert not options("stop", "--no-checkpoint").next
    places["user"].write_text("[stop]\nnext = true\nno-checkpoint = true\n")
    with pytest.raises(UsageError, match="not allowed with"):
        options("stop")


def test_the_environment_turns_files_off(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    places["user"].write_text("nonsense")
    monkeypatch.setenv("MANAPY_CONFIG", "off")
    assert not options("why").settings
    monkeypatch.setenv("MANAPY_CONFIG", "on")
    with pytest.raises(UsageError, match="may only be off"):
        options("why")


def test_help_needs_no_good_file(places: dict[str, Path]) -> None:
    places["user"].write_text("nonsense")
    assert cli.main(["why", "--help"]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[why]\npatience = 'x'\n", "[why] patience: not a time such as 30s, 10m or 2h: 'x'"),
        ("[why]\non-hang = 'x'\n", "[why] on-hang: invalid choice: 'x'"),
        ("[why]\npatienc = 5\n", "[why] patienc: no such option"),
        ("[why]\nwaits = 'yes'\n", "[why] waits: needs true or false, not yes"),
        ("[why]\nschedule = true\n", "[why] schedule: needs a text or a number, not true"),
        ("[why]\nhelp = true\n", "[why] help: no such option"),
        ("[why.x]\n", "[why.x]: no such command"),
        ("[whi]\n", "[whi]: no such command"),
        ("[_coordinator]\n", "[_coordinator]: no such command"),
        ("every = 5\n", "every stands before the first [table]"),
        ("[why]\nevery = 5\nevery = 6\n", "Cannot overwrite a value (at line 3, column 10)"),
        ("[why\n", "line 1: not a [table]"),
        ("[why]\n\nevery = [5]\n", "line 3: not key = value, where a value is"),
        ('[why]\nrun = """\n', "line 2: not key = value, where a value is"),
        ("[why]\nevery = 05\n", "line 2: not key = value, where a value is"),
        ("#" * 70000, "more than 64 kB"),
    ],
)
def test_a_wrong_file_is_one_line(
    text: str, words: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    places["user"].write_text(text)
    assert f"{places['user']}: {words}" in refusal(capsys, "why")
    assert f"{places['user']}: {words}" in refusal(capsys, "config")


def test_a_wrong_value_is_no_error_where_something_stronger_replaces_it(places: dict[str, Path]) -> None:
    places["site"].write_text("[why]\nevery = 'x'\n")
    assert options("why", "--every", "2s").every == 2
    places["job"].write_text("[why]\nevery = 3\n")
    assert options("why").every == 3


def test_an_error_of_the_command_names_the_file(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    places["user"].write_text("[run]\nmargin = 0.5\n")
    assert refusal(capsys, "run", "--", "true").endswith(f"({places['user']} sets margin)")
    assert "sets" not in refusal(capsys, "run", "--margin", "0.6", "--", "true")


@pytest.mark.parametrize("kind", ["foreign", "writable", "pipe", "folder", "unreadable link"])
def test_files_that_are_refused(kind: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Also by manapy-launch, in the same words."""
    path = places["job"]
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "unreadable link":
        path.symlink_to(path)
    else:
        path.write_text("[why]\n")
        if kind == "writable":
            path.chmod(0o664)
        elif os.geteuid() == 0:
            os.chown(path, 99, 99)
        else:
            pytest.skip("only root can give files away")
    said = refusal(capsys, "why").removeprefix("manapy why: ")
    done = subprocess.run([LAUNCH, "true"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"manapy-launch: {said}\n")


def test_a_folder_of_another_user_has_no_file_of_ours(tmp_path: Path) -> None:
    """As after su: $HOME is still that of the other user. A file that exists and cannot be read is an error."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "manapy.toml").write_text("nonsense")
    (home / "manapy.toml").chmod(0o600)
    reads = (
        "import os\nfrom pathlib import Path\nfrom manapy.cli.shared import configuration\n"
        "from manapy.core import errors\nimport manapy.ckpt.store.own\n"
        f"os.chdir('{home}')\nos.setgid(99)\nos.setuid(99)\n"
        "try: print(configuration.read(Path('manapy.toml')))\n"
        "except errors.UsageError as error: print(error)\n"
    )
    for mode, said in ((0o700, "None"), (0o755, "manapy.toml: Permission denied")):
        home.chmod(mode)
        done = subprocess.run([sys.executable, "-c", reads], capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[0] == said, done.stderr


@pytest.mark.parametrize(
    ("table", "key"), [("why", "run"), ("why", "rsh"), ("why", "probe"), ("restart", "mpirun"), ("restart", "mpi")]
)
def test_a_file_of_the_working_directory_does_not_decide_what_runs(
    table: str, key: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"[{table}]\n{key} = 'x'\n"
    places["user"].write_text(text)
    assert getattr(options(table, *["checkpoint"] * (table == "restart")), key)
    places["job"].write_text(text)
    assert f"{places['job']}: [{table}] {key}: not allowed" in refusal(capsys, "config")


def test_config_shows_values_and_their_files(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    places["user"].write_text("[why]\nwaits = true\nevery = 7\n[restart]\nmpirun = 'srun'\n")
    places["job"].write_text("[launch]\ncompress = 'auto'\n[why]\nevery = 9\n[restart]\nkeep = 3\n")
    assert cli.main(["config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [tuple(row.values()) for row in found["options"]] == [
        ("launch", "compress", "auto", "manapy.toml"),
        ("restart", "keep", "3", "manapy.toml"),
        ("restart", "mpirun", "srun", str(places["user"])),
        ("why", "waits", "true", str(places["user"])),
        ("why", "every", "9", "manapy.toml"),
    ]
    assert [place["read"] for place in found["files"]] == [False, True, True]
    assert cli.main(["config", "launch"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["[launch]", "compress", "auto", "manapy.toml"] in lines
    assert ["[launch]", "dirty", "auto", "default"] in lines


def test_config_of_every_command(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--all", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["options"]
    parsers = [defaults.parsers(cli.parser_of(name), name) for name in cli.COMMANDS]
    tables = {table for each in parsers for table, parser in each.items() if defaults.options_of(parser)}
    assert {row["table"] for row in rows} == tables | {"launch"}
    assert not any(row["file"] for row in rows)
    assert cli.main(["config", "lunch"]) == 2


def test_restart_has_the_options_of_manapy_restart() -> None:
    """A table [restart] is of both."""
    inner = {key for key, _, _ in configured.ask(LAUNCH.with_name("manapy-restart"))}
    outer = set(defaults.options_of(cli.parser_of("restart")))
    assert outer - inner == {"mpirun"} and inner <= outer


def test_manapy_launch_knows_all_tables() -> None:
    source = (ROOT / "lowerhalf/start/options/config.c").read_text()
    listed = re.search(r"tables\[\] = \{(.*?)\};", source, re.S)
    assert listed and set(re.findall(r'"(\w+)"', listed[1])) == {*cli.COMMANDS, *defaults.OTHERS}


def test_manapy_launch_takes_what_the_command_line_takes(places: dict[str, Path]) -> None:
    """Each option is set to something else than its default, in a file and on the command line."""
    values = {
        "interval": "10m", "dir": "there", "keep": "3", "mpi": "/opt", "child-grace": "1s", "callback-timeout": "2s",
        "ignore-child": "ssh", "drop-sockets": "true", "background": "off", "compress": "on", "dirty": "off",
        "full-every": "5", "local": "/nvme", "flush": "off", "redundancy": "xor", "failure-groups": "racks",
        "protocol": "2pc", "shift": "off", "on-failover": "checkpoint", "no-trace": "true",
    }  # fmt: skip
    words = [f"--{key}={value}" for key, value in values.items() if value != "true"] + ["--drop-sockets", "--no-trace"]
    said = {key: value for key, value, _ in configured.ask(LAUNCH, words)}
    assert said == values
    lines = [f'{key} = "{value}"' if value != "true" else f"{key} = true" for key, value in values.items()]
    places["user"].write_text("\n".join(["[launch]", *lines, ""]))
    assert configured.ask(LAUNCH) == [(key, said[key], str(places["user"])) for key in said]
    off = {key: (value, file) for key, value, file in configured.ask(LAUNCH, ["--trace", "--keep", "4"])}
    assert off["no-trace"] == ("false", "") and off["keep"] == ("4", "")


def test_a_file_may_use_the_old_name_of_an_option(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    places["user"].write_text("[trace.top]\ninterval = '3s'\n")
    assert options("trace", "top").every == 3
    assert capsys.readouterr().err == f"{places['user']}: [trace.top] interval is called every now\n"


PIECES = some.one_of(
    some.sampled_from(
        ["[launch]", "[why]", "[launch", "[trace.record]", " [ trace . record ] # x", "keep = 3", "keep=03", "x=1",
         "dir = 'a # b' # c", 'dir = "a\\"b\\\\"', 'dir = "\\n"', "mpi = \"''\"", "mpi = ''", "no-trace = true",
         "no-trace = 'true'", "dir = true", "a.b = 1", "keep = 1.5", "keep = 1.", "keep = 1_0", "keep = -1", "keep =",
         "= 3", "# \x01", "\t# é\r", "dir = 'é'\r", "dir = '\t'", "keep = 3 4", "keep = 3#4", '"keep" = 3', "\r"]
    ),
    some.text(string.printable.replace("\n", ""), max_size=12),
)  # fmt: skip


@given(some.lists(PIECES, max_size=5))
def test_both_readers_read_the_same(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Syntax, and the text of each value; not the words of errors. A second table with the name of another command is
    found by the commands alone."""
    path = tmp_path_factory.mktemp("both") / "manapy.toml"
    path.write_bytes("\n".join(lines).encode())
    try:
        file = configuration.read(path)
        assert file is not None
        settings = {s.key: s.text for s in file.settings if s.table == "launch"}
        known = {"keep", "dir", "mpi", "no-trace"}
        tables = {table.partition(".")[0] for table in file.tables} <= {*cli.COMMANDS, "launch"}
        truths = all(s.is_truth == (s.key == "no-trace") for s in file.settings if s.table == "launch")
        good = tables and truths and set(settings) <= known and "launch.x" not in file.tables
        good = good and not any(table.startswith("launch.") for table in file.tables)
        good = good and settings.get("keep", "1").isdigit() and settings.get("keep", "1") != "0"
    except UsageError:
        good, settings = False, {}
    environment = {"XDG_CONFIG_HOME": str(path.parent), "PATH": os.environ["PATH"]}
    done = subprocess.run([LAUNCH, "--settings"], cwd="/", env=environment, capture_output=True, text=True, timeout=60)
    if good:
        rows = [line.split("\t") for line in done.stdout.split("\n")[:-1]]
        assert done.returncode == 0, done.stderr
        assert {row[0]: "\t".join(row[1:-1]) for row in rows if row[-1]} == settings
    else:
        again = [line for line in lines if "[" in line]
        assert done.returncode == 2 or len(again) > len(set(again)), done.stdout
