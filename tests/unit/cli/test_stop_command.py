"""Times on the command line of `manapy stop`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from manapy import cli
from manapy.cli.save.stop import moment


def test_moment() -> None:
    now = datetime.now().astimezone()
    for text in ("00:00", "12:30", "23:59:59"):
        found = moment(text)
        assert now < found <= now + timedelta(days=1, hours=1) and found.strftime("%H:%M:%S").startswith(text)
    assert moment("2200-01-02T03:04").strftime("%F %T") == "2200-01-02 03:04:00"


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local time is that of Berlin."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("evening", "moment_in_utc"), [((2026, 3, 28), "2026-03-29 04:30"), ((2026, 10, 24), "2026-10-25 05:30")]
)
def test_moment_after_the_clock_has_changed(
    berlin: None, monkeypatch: pytest.MonkeyPatch, evening: tuple[int, int, int], moment_in_utc: str
) -> None:
    class Evening(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Evening:
            return cls(*evening, 23)

    monkeypatch.setattr("datetime.datetime", Evening)
    assert moment("06:30").astimezone(UTC).strftime("%F %H:%M") == moment_in_utc


@pytest.mark.parametrize(
    ("text", "complaint"), [("soon", "not a time"), ("25:00", "not a time"), ("2001-01-01", "passed")]
)
def test_no_such_moment(text: str, complaint: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=complaint):
        moment(text)


def test_one_end_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stop", "--next", "--cancel"]) == 2
    assert "not allowed with" in capsys.readouterr().err
