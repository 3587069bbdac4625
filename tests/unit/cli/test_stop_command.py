"""Times on the command line of `manapy stop`."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta

import pytest
from manapy import cli
from manapy.cli.save.stop import moment


def test_moment() -> None:
    now = datetime.now().astimezone()
    for text in ("00:00", "12:30", "23:59:59"):
        found = moment(text)
        assert now < found <= now + timedelta(days=1, hours=1) and found.strftime("%H:%M:%S").startswith(text)
    assert moment("2200-01-02T03:04").strftime("%F %T") == "2200-01-02 03:04:00"


@pytest.mark.parametrize(
    ("text", "complaint"), [("soon", "not a time"), ("25:00", "not a time"), ("2001-01-01", "passed")]
)
def test_no_such_moment(text: str, complaint: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=complaint):
        moment(text)


def test_one_end_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stop", "--next", "--cancel"]) == 2
    assert "not allowed with" in capsys.readouterr().err
