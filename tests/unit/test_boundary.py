"""manapy/core/boundary.py mirrors boundary.h; and the behaviour of the public functions outside manapy."""

from __future__ import annotations

import signal
import tomllib
from pathlib import Path

import layout
import pytest

import manapy
from manapy.core import boundary


def test_layout(tmp_path: Path, include: Path) -> None:
    assert (
        layout.differences(tmp_path, include, "manapy/boundary.h", boundary.STRUCTURES, frozenset({"lower", "upper"}))
        == []
    )


def test_constants(tmp_path: Path, include: Path) -> None:
    names = {
        "MAGIC": "MPY_BOUNDARY_MAGIC",
        "VERSION": "MPY_BOUNDARY_VERSION",
        "AT_BOUNDARY": "MPY_AT_BOUNDARY",
        "UPPER_ADDR": "MPY_UPPER_ADDR",
        "ROW_FREED": "MPY_ROW_FREED",
    }
    for name, value in layout.c_values(tmp_path, include, "manapy/boundary.h", names).items():
        assert getattr(boundary, name) == value, name


def test_outside_manapy_nothing_happens_and_is_said() -> None:
    with pytest.warns(RuntimeWarning, match="does not run under manapy-launch"):
        assert manapy.checkpoint() is None
    with pytest.warns(RuntimeWarning, match="does not run under manapy-launch"):
        assert manapy.is_restart() is False
    with pytest.warns(RuntimeWarning, match="does not run under manapy-launch"):
        assert manapy.clock.table() == {}


def test_callbacks_outside_manapy_are_never_called() -> None:
    """And nothing is said."""

    @manapy.before_checkpoint
    @manapy.after_checkpoint
    @manapy.after_restart
    def callback() -> None:
        raise AssertionError

    before = [signal.getsignal(number) for number in range(35, 62)]
    manapy.callbacks_anywhere()
    manapy.poll()
    manapy.remove_callback(callback)
    assert [signal.getsignal(number) for number in range(35, 62)] == before
    assert (Path(manapy.get_include()) / "manapy.h").exists()


def test_warning_names_the_caller() -> None:
    with pytest.warns(RuntimeWarning) as caught:
        manapy.is_restart()
    assert caught[0].filename == __file__


def test_version_is_that_of_the_package(root: Path) -> None:
    assert manapy.__version__ == tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
