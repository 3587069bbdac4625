"""A command on its own pseudo-terminal, which is its controlling terminal, and the content of the screen."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

from jobs import PATIENCE, JobError

ROWS, COLUMNS = 40, 200
_PART = re.compile(r"\x1b\[(\??)(\d*)(?:;\d+)*([A-Za-z])|\x1b.|[\r\n]|[^\x1b\r\n]+")


class Terminal:
    """Starts the command; `close` ends it."""

    def __init__(self, *command: str | Path, cwd: Path | None = None) -> None:
        self._master, self._slave = os.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._before = termios.tcgetattr(self._slave)
        self.drawn = b""

        def control() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        streams = {"stdin": self._slave, "stdout": self._slave, "stderr": self._slave}
        # they describe the terminal of the pytest-xdist worker, and rich would use them
        size = ("COLUMNS", "LINES")
        env = {name: value for name, value in os.environ.items() if name not in size} | {"TERM": "xterm"}
        self.process = subprocess.Popen(
            [str(c) for c in command], **streams, cwd=cwd, env=env, start_new_session=True, preexec_fn=control
        )

    def type(self, keys: bytes) -> None:
        """Send keys as if a user typed them: ^C makes the terminal send SIGINT."""
        os.write(self._master, keys)

    def screen(self) -> list[str]:
        """The lines of the screen. Only the control sequences that rich uses are supported; others are an error."""
        lines, row, column = [""], 0, 0
        for part in _PART.finditer(self.drawn.decode(errors="replace")):
            text, number = part[0], int(part[2] or 1) if part[2] is not None else 0
            if text == "\r":
                column = 0
            elif text == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif not text.startswith("\x1b"):
                lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
                column += len(text)
            elif part[3] == "A":
                row = max(row - number, 0)
            elif part[3] == "K" and number == 2:
                lines[row] = ""
            elif part[3] != "m" and (part[1], number) != ("?", 25):
                raise JobError(f"{text!r} on the terminal")
        return [line.rstrip() for line in lines if line.strip()]

    def wait_for(self, ready: Callable[[list[str]], object], timeout: float = PATIENCE) -> list[str]:
        """Wait until the content of the screen satisfies a condition; the content then."""
        deadline = time.monotonic() + timeout
        while not ready(shown := self.screen()):
            if not self._read() and (self.process.poll() is not None or time.monotonic() > deadline):
                raise JobError("not on the terminal:\n" + "\n".join(shown))
        return shown

    def wait(self) -> int:
        """Wait until the command ends; its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            self._read()
            if time.monotonic() > deadline:
                raise JobError("it still runs:\n" + "\n".join(self.screen()))
        while self._read():
            pass
        return self.process.returncode

    def is_sane(self) -> bool:
        """Are its settings as before, and is the cursor visible?"""
        return termios.tcgetattr(self._slave) == self._before and self.drawn.rfind(b"\x1b[?25h") >= self.drawn.rfind(
            b"\x1b[?25l"
        )

    def close(self) -> None:
        """End the command. Call this once."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def _read(self) -> bool:
        ready = select.select([self._master], [], [], 0.1)[0]
        if ready:
            self.drawn += os.read(self._master, 1 << 16)
        return bool(ready)
