"""The console blocks of the documentation: commands, and what they print.

    ```console
    $ manapy checkpoint
    /home/me/job/ckpt-000001
    ```

A line that begins with `$ ` is a command; a backslash at its end continues it. The lines below it are its output, both
streams. A block of code with a title is a file in the directory in which the commands run: ```python title="solver.py"

Comments before a block, each in a line of its own:

    <!-- wait: COMMAND -->     the block's commands begin when this shell command succeeds
    <!-- exit: N -->           the exit code of the block's last command (default 0)
    <!-- not run: REASON -->   the block is not run; only its commands and options are checked

A page may begin with what it needs, <!-- needs: NAME -->: slurm; torch; rails, the machine with RDMA devices; or hosts,
the three hosts n1, n2 and n3. Other comments of this form are an error.

How output is compared:

 1. `...` in a line stands for any text; a line of `...` alone stands for any number of lines.
 2. Measured values are not compared: numbers with a decimal point or a unit, ids of processes, names of jobs, times.
 3. The number of spaces does not matter.
 4. What a checkpoint waits for is printed if it takes long, as on a busy machine. Such lines may come in addition.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(r"^((?:<!-- .* -->\n)*)```(\w+)(?: title=\"([^\"]+)\")?\n((?:.*\n)*?)```$", re.M)
_NOTE = re.compile(r"<!-- (\w[\w ]*): (.*) -->")
_MEASURED = (  # a pattern, and what stands for it
    (r"manapy(-chain)?-[0-9a-z][0-9a-z-]{8,}|\bjob [0-9a-z]{10}\b", "NAME"),
    (r"\b(\d\d-\d\d )?\d\d:\d\d(:\d\d)?\b|\b\d{4}-\d\d-\d\d\b", "TIME"),
    (r"\bvm +\d+\b|\bprocess \d+\b|(?<![\w.-])\d{4,}(?![\w.-])", "N"),
    (r"(?<![\w.-])\d+(\.\d+)?(e[+-]\d+)? ?(ns|µs|ms|s|min|h|B|[kKMGT]i?B|MB/s|%)(?!\w)", "N"),
    (r"(?<![\w.])-?\d+\.\d+(e[+-]\d+)?\b", "N"),
)
# Flow.waiting() of manapy/ckpt/coordinator, and Controller.status() of manapy/clock
_PROGRESS = re.compile(
    r"publishing|saving \(.*\)|writing: .*|\w+: waiting for ranks? .*"
    r"|ranks? [\d, to]+(: no answer yet .*|: not connected .*| has computed for .*)"
)
DOCS = Path(__file__).resolve().parent.parent / "docs"
_NEEDS = ("slurm", "torch", "rails", "hosts")
_BETWEEN = "\x1e"  # before and after the output of a command, and after its exit code
_PATIENCE = 200  # seconds to wait for a condition: a job in Slurm needs two allocations of a minute


@dataclass(frozen=True)
class Command:
    """One command of a page, and its output as the page shows it."""

    text: str
    output: list[str]
    exit: int = 0
    wait: str = ""


@dataclass(frozen=True)
class Page:
    """What a page lets its reader do. needs: slurm, torch, rails, hosts, or empty."""

    needs: str
    files: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)  # those that are run
    others: list[Command] = field(default_factory=list)  # those that are not


def pages(needs: str = "") -> dict[str, Page]:
    """The pages of docs/ with commands that are run, by name; those that need this."""
    found = {path.name: read(path.read_text()) for path in sorted(DOCS.glob("*.md"))}
    return {name: page for name, page in found.items() if page.commands and page.needs == needs}


def read(text: str) -> Page:
    """The blocks of a page. Raises ValueError for a comment that means nothing, and for `\\\\` at the end of a line."""
    for name, value in _NOTE.findall(text):
        if name not in ("wait", "exit", "not run") and (name != "needs" or value not in _NEEDS):
            raise ValueError(f"<!-- {name}: {value} --> means nothing")
    if doubled := re.search(r"^.*\\\\$", text, re.M):
        raise ValueError(f"two backslashes at the end of a line do not continue it: {doubled[0]}")
    first = _NOTE.match(text)
    page = Page(first[2] if first and first[1] == "needs" else "")
    for notes, language, title, body in _BLOCK.findall(text):
        if title:
            page.files[title] = body
        elif language == "console":
            said = dict(_NOTE.findall(notes))
            found = list(_commands(body, int(said.get("exit", 0)), said.get("wait", "")))
            (page.others if "not run" in said else page.commands).extend(found)
    return page


def _commands(body: str, code: int, wait: str) -> Iterator[Command]:
    joined = re.sub(r"\\\n *", "", body)
    parts = [part.splitlines() for part in re.split(r"^\$ ", joined, flags=re.M)[1:]]
    for number, (text, *output) in enumerate(parts):
        yield Command(text, output, code if number == len(parts) - 1 else 0, wait if number == 0 else "")


def script(commands: list[Command]) -> str:
    """A script for bash that runs commands one after the other. outputs() reads what it prints."""
    lines = [
        "wait_for() {",
        f"  local end=$((SECONDS + {_PATIENCE})) looks=0",
        '  until eval "$1" > /dev/null 2>&1; do',
        '    ((SECONDS < end)) || { echo "waited in vain for: $1"; exit 1; }',
        "    sleep $((looks++ < 20 ? 0 : 1)).1",  # less often for what takes minutes: other tests need the processors
        "  done",
        "}",
    ]
    for command in commands:
        lines += [f"wait_for {shlex.quote(command.wait)}"] * bool(command.wait)
        lines += [f"printf '{_BETWEEN}'", "{", command.text, "} < /dev/null", f"printf '{_BETWEEN}%s{_BETWEEN}' $?"]
    return "\n".join(lines) + "\n"


def outputs(said: str) -> list[tuple[list[str], int | None]]:
    """The output and the exit code of each command of a script, as far as it came. The code is None if the command has
    not ended. What the shell says of background jobs that were killed is left out."""
    parts = re.sub(r"bash: line \d+: +\d+ Killed .*\n", "", said).split(_BETWEEN)[1:]
    return [
        (parts[at].splitlines(), int(parts[at + 1]) if at + 2 < len(parts) else None) for at in range(0, len(parts), 3)
    ]


def difference(command: Command, output: list[str], code: int | None, names: Mapping[str, str]) -> str:
    """What is not as the page says; empty if all is. names: what the page calls the places and hosts of this run."""
    if code != command.exit:
        return f"$ {command.text}\nexit code {code}, not {command.exit}:\n" + "\n".join(output)
    for here, there in names.items():
        output = [line.replace(here, there) for line in output]
    expected = [_plain(line) for line in command.output]
    shown = [line for line in map(_plain, output) if line in expected or not _PROGRESS.fullmatch(line)]
    lines = (
        "(?:.*\n)*" if line == "..." else re.escape(line).replace(re.escape("..."), ".*") + "\n" for line in expected
    )
    if re.fullmatch("".join(lines), "".join(f"{line}\n" for line in shown)):
        return ""
    return "\n".join([f"$ {command.text}", "prints:", *shown, "The page says:", *expected])


def _plain(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, name in _MEASURED:
        line = re.sub(pattern, name, line)
    return " ".join(line.split())


def invocations(line: str) -> Iterator[list[str]]:
    """The calls of manapy's programs in a command line: `manapy ...`, `manapy-launch ...`, `manapy-restart ...`. The
    arguments of a call end at the shell's next operator."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, "#"
    call: list[list[str]] = []
    for word in words:
        if re.fullmatch(r"[|&;()<>]+", word):
            yield from call
            call = []
        else:
            if word in ("manapy", "manapy-launch", "manapy-restart"):
                call.append([])
            for one in call:
                one.append(word)
    yield from call
