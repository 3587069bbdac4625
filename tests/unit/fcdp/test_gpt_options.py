"""What `manapy fcdp train` derives from its options and from a saved state, what it refuses, and its texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manapy.core.errors import ManapyError, UsageError
from manapy.fcdp.errors import SetupError, StateError
from manapy.fcdp.gpt import text
from manapy.fcdp.gpt.options import Run, Saved, Training, check_targets, settle
from manapy.fcdp.state.state_index import FILE, Index

KEPT = Training(hidden=32, heads=2, batch=6, rate=0.01)


def state(directory: Path, **changes: Any) -> Path:
    directory.mkdir()
    extra = Saved(Training(**{**vars(KEPT), **changes}), 5, "digest", [2.5, 2.25]).extra()
    (directory / FILE).write_text(Index(1, "fcdp", False, {}, extra=extra).text())
    return directory


def test_a_state_says_what_is_trained(tmp_path: Path) -> None:
    there = state(tmp_path / "state")
    assert settle({"batch": 8}, Run(resume=there, steps=6)) == (
        Training(hidden=32, heads=2, batch=8, rate=0.01),
        Saved(KEPT, 5, "digest", [2.5, 2.25]),
    )
    assert settle({"lora": 4}, Run(base=there)) == (Training(hidden=32, heads=2, lora=4), None)
    assert settle({"hidden": 64}, Run()) == (Training(hidden=64), None)


@pytest.mark.parametrize(
    ("given", "run", "said"),
    [
        ({"hidden": 32, "heads": 5}, {}, "--heads must divide --hidden: 5 does not divide 32"),
        ({"lora": 4}, {}, "--lora needs the model to adapt: --base DIR, written by `manapy fcdp train --save DIR`"),
        ({"hidden": 64}, {"base": "full"}, "full holds another model: --hidden 32 there, 64 here"),
        ({"lora": 4}, {"resume": "full"}, "full holds another model: --lora 0 there, 4 here"),
        ({}, {"base": "adapters"}, "adapters has adapters (--lora 4): a base must be a whole model"),
        ({}, {"resume": "full", "steps": 5}, "full is at step 5: --steps, 5, must be more"),
        (
            {},
            {"resume": "full", "base": "full"},
            "--base begins a training, --resume continues one: give only one of them",
        ),
        ({}, {"tau": 0.5}, "--tau is a share of --device-memory, which is not given"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], run: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    state(tmp_path / "full")
    state(tmp_path / "adapters", lora=4)
    with pytest.raises(UsageError) as raised:
        settle(
            given, Run(**{name: Path(value) if name in ("base", "resume") else value for name, value in run.items()})
        )
    assert str(raised.value) == said


@pytest.mark.parametrize(
    "extra", [None, {"step": 5}, {"kind": "another's"}, {"kind": "manapy fcdp train", "training": {"width": 3}}]
)
def test_a_state_of_another_program(tmp_path: Path, extra: Any) -> None:
    (tmp_path / FILE).write_text(Index(1, "fcdp", False, {}, extra=extra).text())
    with pytest.raises(StateError, match="is not a state of `manapy fcdp train`"):
        settle({}, Run(resume=tmp_path))


def test_where_nothing_can_be_written_is_found_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for run in (Run(save=tmp_path), Run(save=tmp_path / "file" / "state"), Run(out=tmp_path / "file")):
        with pytest.raises((ManapyError, OSError)):
            check_targets(run)
    check_targets(Run(save=tmp_path / "new" / "state", out=tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "new", "out"]


def test_texts(tmp_path: Path) -> None:
    """Each text is long enough, no window reaches beyond its part, and the batch of a step is the same for all
    ranks."""
    whole, adapters = text.load(None, False, 128), text.load(None, True, 128)
    assert whole.digest != adapters.digest and min(whole.training.size, adapters.training.size) > 200_000
    assert (whole.batch(1, 2, 4, 128) == whole.batch(1, 2, 4, 128)).all() and (
        whole.batch(1, 2, 4, 128) != whole.batch(1, 3, 4, 128)
    ).any()
    (tmp_path / "file").write_bytes(bytes(range(200)))
    small = text.load(tmp_path / "file", False, 19)
    assert np.unique(small.batch(0, 0, 1000, 19)).tolist() == list(range(180))
    assert np.unique(small.windows(19)).tolist() == list(range(180, 200))
    with pytest.raises(SetupError, match="200 bytes are too few"):
        text.load(tmp_path / "file", False, 20)
