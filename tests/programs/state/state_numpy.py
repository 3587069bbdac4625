"""numpy: arrays, generators, OpenBLAS with its threads, running and idle."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
from checkpointed import main, wait_until


def state_arrays() -> Iterator[None]:
    generator = np.random.default_rng(42)
    a = generator.random((500, 500))
    total = a.sum()
    expected = np.random.default_rng(42)
    expected.random((500, 500))
    yield
    assert a.sum() == total
    assert generator.random() == expected.random()
    assert np.allclose(np.linalg.solve(a, a @ np.ones(500)), 1)


def state_blas_running() -> Iterator[None]:
    a = np.random.default_rng(1).random((400, 400))
    expected = a @ a
    stop, wrong, rounds = threading.Event(), [], [0]

    def multiply() -> None:
        while not stop.is_set():
            if not np.array_equal(a @ a, expected):
                wrong.append(rounds[0])
            rounds[0] += 1

    thread = threading.Thread(target=multiply)
    thread.start()
    wait_until(lambda: rounds[0] > 2)
    yield
    before = rounds[0]
    wait_until(lambda: rounds[0] > before + 2)
    stop.set()
    thread.join(30)
    assert not wrong
    values = np.linalg.eigvalsh(a + a.T)
    assert np.isclose(values.sum(), 2 * np.trace(a))


def state_error_state() -> Iterator[None]:
    np.seterr(divide="raise")
    yield
    try:
        np.float64(1) / np.zeros(1)
        raise AssertionError("no error")
    except FloatingPointError:
        pass


main(globals())
