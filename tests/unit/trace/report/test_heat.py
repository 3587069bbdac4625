"""Own work per rank and iteration, and the share of time in MPI: the numbers, and which cells remain visible in a
coarser picture."""

from __future__ import annotations

import numpy as np
import pytest
from traces import Builder

from manapy.trace.model import stages
from manapy.trace.model.events import Flag, Op
from manapy.trace.model.iterations import iterations
from manapy.trace.model.schedule import parse
from manapy.trace.report import heatmap
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate


def of(model: Model, *faults: Fault, stopped: int | None = None) -> heatmap.Heat:
    trace = simulate(model, faults, 1).trace
    assert trace is not None
    labels = stages.label(trace, model.schedule)
    if stopped is not None:
        trace.events["flags"][np.flatnonzero(labels.iteration == stopped)[3]] |= Flag.STOPPED
    return heatmap.work(labels, list(iterations(labels)))


@pytest.mark.parametrize(
    "text",
    ["tp=2,pp=4,dp=2,micro=8", "tp=2,pp=2,dp=2,micro=4,order=tp-pp-dp", "tp=2,pp=2,dp=1,micro=4,kind=interleaved"],
)
def test_work_of_the_rank_that_had_more_of_it(text: str) -> None:
    found = of(Model(parse(text), iterations=6), Fault(Kind.COMPUTE, 2, 4, 1, seconds=1.5))
    assert found.ratio is not None
    assert np.unravel_index(found.ratio.argmax(), found.ratio.shape) == (2, 4)
    assert found.values[2, 4] - found.values[2, 3] == pytest.approx(1.5, rel=0.05)
    others = np.delete(found.ratio[:, 1:].ravel(), 2 * 5 + 3)
    assert (np.abs(others - 1) < 0.1).all()
    assert found.rows == [(rank, rank) for rank in range(parse(text).size)] and found.columns[4] == (4, 4)
    assert (found.end[:-1] == found.begin[1:]).all()


def test_an_iteration_with_a_checkpoint_is_not_known() -> None:
    found = of(Model(parse("tp=2,pp=2,dp=1,micro=2"), iterations=4), stopped=2)
    assert np.isnan(found.values).all(axis=0).tolist() == [False, False, True, False]


def test_of_many_ranks_and_iterations_the_largest_work_stays() -> None:
    found = of(
        Model(parse("tp=2,pp=2,dp=64,micro=2"), iterations=300, layers=1), Fault(Kind.COMPUTE, 77, 201, 1, seconds=1.0)
    )
    assert found.values.shape == (heatmap.ROWS, heatmap.COLUMNS) and found.ratio is not None
    row, column = np.unravel_index(found.ratio.argmax(), found.ratio.shape)
    assert (
        found.rows[row][0] <= 77 <= found.rows[row][1] and found.columns[column][0] <= 201 <= found.columns[column][1]
    )
    assert [a for a, _ in found.rows[1:]] == [b + 1 for _, b in found.rows[:-1]] and found.rows[-1][1] == 255


def test_the_share_of_time_in_mpi() -> None:
    job = Builder(3)
    job.call(0, Op.BARRIER, 0, 1200)
    job.call(1, Op.BARRIER, 600, 1200)
    job.call(1, Op.BARRIER, 1800)  # open
    found = heatmap.share(job.trace(2400), 0, 2400)
    assert found.values.shape == (3, heatmap.COLUMNS) and found.ratio is None
    share = found.values.reshape(3, 4, -1)
    assert (share[0] == [[1.0], [1.0], [0.0], [0.0]]).all()
    assert np.isnan(share[1, 0]).all() and share[1, 1:].mean(axis=1).tolist() == [1.0, 0.0, 1.0]
    assert np.isnan(share[2]).all()
