"""Messages and rounds of the protocols for more ranks than a machine has processors, counted in the model
(manapy/clock)."""

from __future__ import annotations

import functools

from ...clock.model import scale
from ..shared.commands import Setting
from ..shared.plots import available
from ..shared.samples import Row, Rows


def messages(setting: Setting) -> list[Row]:
    """For one checkpoint: control messages per rank and rounds. For an undisturbed run: messages that the protocol adds
    to a collective."""
    sizes = [size for size in scale.SIZES if size <= setting.simulated]
    counted: list[scale.Row] = []
    for i, size in enumerate(sizes):
        # The time grows with the size, and each size is four times the one before.
        counted += scale.measure([size], progress=functools.partial(setting.progress, 4.0 ** (i - len(sizes))))
    rows = Rows("messages")
    for row in counted:
        name = f"{row.program}, {row.ranks} ranks"
        rows.add(f"{name}: control messages a rank", "", row.protocol, 0, row.per_rank)
        rows.add(f"{name}: rounds", "", row.protocol, 0, row.rounds)
        rows.add(f"{name}: added to a collective, a rank", "", row.protocol, 0, row.steady)
    if available() and counted:
        scale.plot(counted, setting.pictures / "messages.png")
    return rows.all()
