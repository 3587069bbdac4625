"""The reader of console blocks: it finds what a page lets its reader do, and every difference."""

from __future__ import annotations

import subprocess

import console
import pytest

NAMES = {"/tmp/x": "/home/me"}
PAGE = """\
<!-- needs: slurm -->
# Title

```python title="solver.py"
print(1)
```

<!-- wait: test -e out.txt -->
<!-- exit: 3 -->
```console
$ echo one \\
    # a comment
one
$ exit 3
```

<!-- not run: it needs two hosts -->
```console
$ manapy list
```
"""


def test_a_page() -> None:
    page = console.read(PAGE)
    assert page.needs == "slurm" and page.files == {"solver.py": "print(1)\n"}
    first, second = page.commands
    assert first == console.Command("echo one # a comment", ["one"], 0, "test -e out.txt")
    assert second == console.Command("exit 3", [], 3)
    assert [command.text for command in page.others] == ["manapy list"]


@pytest.mark.parametrize("comment", ["exits: 1", "needs: luck", "skip: no time"])
def test_comments_that_mean_nothing(comment: str) -> None:
    with pytest.raises(ValueError, match="means nothing"):
        console.read(PAGE + f"<!-- {comment} -->\n")


def test_two_backslashes_at_the_end_of_a_line() -> None:
    with pytest.raises(ValueError, match="two backslashes"):
        console.read(PAGE.replace("\\\n", "\\\\\n"))


def run(*commands: console.Command) -> list[str]:
    """What is not as the commands say, for each that has begun."""
    done = subprocess.run(
        ["bash", "-c", console.script(list(commands))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    shown = console.outputs(done.stdout)
    return [console.difference(command, *said, NAMES) for command, said in zip(commands, shown, strict=False)]


def test_commands_share_a_shell_and_are_compared_one_by_one() -> None:
    assert run(
        console.Command("name=value; cd /tmp", []),
        console.Command("echo $name; pwd; (exit 2)", ["value", "/tmp"], 2),
        console.Command("echo first; echo", ["first", ""], wait="true"),
        console.Command("cat", []),  # does not read the script
        console.Command("sleep 60 & kill -9 $!; wait $!", [], 137),
    ) == ["", "", "", "", ""]


@pytest.mark.parametrize(
    ("text", "output", "code"),
    [
        ("echo 2 ranks", ["3 ranks"], 0),
        ("echo one; echo two", ["one"], 0),
        ("echo one", ["one", "two"], 0),
        ("echo one", [], 0),
        ("echo published", [], 0),
        ("true", ["publishing"], 0),
        ("true", ["one"], 0),
        ("false", [], 0),
        ("true", [], 1),
        ("echo /tmp/x/ckpt-000002", ["/home/me/ckpt-000001"], 0),
        ("echo one; echo two; echo three", ["...", "two"], 0),
    ],
)
def test_differences_are_found(text: str, output: list[str], code: int) -> None:
    assert run(console.Command(text, output, code)) != [""]


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ("1.52 s, 66.1 MB", ["0.3 s,  9 MB"]),
        ("manapy-2q9r8ptcf6 process 12 at 12:30", ["manapy-aaaaaaaaaa process 9 at 01:00:12"]),
        ("a b\nc\nd", ["a ...", "...", "d"]),
        ("d", ["...", "d"]),
        ("d", ["d", "..."]),
        ("a/b/c", ["a...c"]),
        ("/tmp/x/job", ["/home/me/job"]),
        ("", ["..."]),
        ("publishing\nresuming: waiting for ranks 0, 1\nrank 3 has computed for 4.1 s; it may take long\nd", ["d"]),
        ("publishing\nd", ["publishing", "d"]),
    ],
)
def test_what_is_not_compared(shown: str, output: list[str]) -> None:
    assert console.difference(console.Command("", output), shown.splitlines(), 0, NAMES) == ""


def test_a_command_that_has_not_ended() -> None:
    shown = console.outputs(f"{console._BETWEEN}half an answer")
    assert shown == [(["half an answer"], None)]
    assert "exit code None" in console.difference(console.Command("sleep 9", []), *shown[0], {})


def test_invocations() -> None:
    line = "mpirun -n 4 manapy-launch --dir 'my job' python s.py > out.txt & manapy why # look"
    assert list(console.invocations(line)) == [
        ["manapy-launch", "--dir", "my job", "python", "s.py"],
        ["manapy", "why"],
    ]
    assert list(console.invocations("manapy run -- mpirun manapy-launch p")) == [
        ["manapy", "run", "--", "mpirun", "manapy-launch", "p"],
        ["manapy-launch", "p"],
    ]
