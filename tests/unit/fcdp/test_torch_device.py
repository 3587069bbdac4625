"""The order of copies to and from a device. Its streams are threads that stand still until the test releases them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from manapy.fcdp.errors import SetupError

torch = pytest.importorskip("torch", reason="no PyTorch: pip install '.[torch]'")

from torch import nn  # noqa: E402

from manapy.fcdp.pytorch.device import Staging, Threads, find  # noqa: E402
from manapy.fcdp.pytorch.grouping import blocks, groups_of  # noqa: E402
from manapy.fcdp.pytorch.storage import DeviceStorage  # noqa: E402

WEIGHT, NBYTES = 6, 24


class Stalled(Threads):
    """log: the operations, in order. Nothing is copied in before go is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.log: list[str] = []
        self._in.submit(self.go.wait)

    def wait(self, event: object) -> None:
        self.log.append("wait")
        self.go.set()
        super().wait(event)  # type: ignore[arg-type]
        assert event.query()  # type: ignore[attr-defined]


@pytest.fixture
def device() -> Iterator[Stalled]:
    stalled = Stalled()
    yield stalled
    stalled.go.set()  # otherwise its thread would keep pytest from ending


def storage_on(device: Stalled, staging: Staging) -> tuple[nn.Linear, DeviceStorage]:
    layer = nn.Linear(3, 2, bias=False)
    (group,) = groups_of(layer, blocks)
    storage = DeviceStorage(group.members[0], WEIGHT, device, staging)
    storage.hide()
    return layer, storage


def fill(storage: DeviceStorage, value: float) -> None:
    storage.take().view("float32")[:] = value
    storage.filled()


def test_computation_waits_for_the_copy_when_the_unit_is_used_and_not_before(device: Stalled) -> None:
    layer, storage = storage_on(device, Staging(device.host, NBYTES, 2))
    fill(storage, 5)
    assert device.log == []  # filled() doesn't wait
    storage.show()
    assert device.log == ["wait"] and (layer.weight == 5).all()
    storage.hide()
    storage.give_back()
    assert device.log == ["wait"] and layer.weight.isnan().all()


def test_memory_is_not_given_back_while_a_copy_into_it_is_under_way(device: Stalled) -> None:
    _, storage = storage_on(device, Staging(device.host, NBYTES, 2))
    fill(storage, 5)
    storage.give_back()
    assert device.log == ["wait"]


def test_the_window_is_copied_from_directly_and_not_refreshed_meanwhile(device: Stalled) -> None:
    layer, storage = storage_on(device, Staging(device.host, NBYTES, 0))
    window = np.full(WEIGHT, 5, np.float32)
    storage.read_from(window)
    taken = storage.take()
    assert np.shares_memory(taken, window) and not taken.flags.writeable
    storage.filled()

    def refresh() -> None:
        storage.settle()
        window[:] = 9

    refreshed = threading.Thread(target=refresh)
    refreshed.start()
    refreshed.join(0.05)
    assert refreshed.is_alive() and device.log == []  # computation need not wait, but writers must
    device.go.set()
    refreshed.join(60)
    assert not refreshed.is_alive()
    storage.show()
    assert (layer.weight == 5).all()


def test_a_staging_buffer_is_not_used_again_before_the_copy_from_it_is_complete(device: Stalled) -> None:
    staging = Staging(device.host, NBYTES, 2)
    (first_layer, first), (_, second), (_, third) = (storage_on(device, staging) for _ in range(3))
    fill(first, 1)
    fill(second, 2)  # the other buffer
    taken = threading.Thread(target=lambda: fill(third, 3))
    taken.start()
    taken.join(0.05)
    assert taken.is_alive()  # no buffer is left: it waits
    device.go.set()
    taken.join(60)
    assert not taken.is_alive()
    first.show()
    assert (first_layer.weight == 1).all()


def test_a_buffer_that_was_not_filled_is_free_at_once(device: Stalled) -> None:
    staging = Staging(device.host, NBYTES, 1)
    _, storage = storage_on(device, staging)
    buffer = storage.take()
    storage.give_back()
    assert storage.take().ctypes.data == buffer.ctypes.data and device.log == []


def test_what_is_copied_out_is_there_after_its_event(device: Stalled) -> None:
    copy, event = device.copy_out(torch.arange(4.0))
    event.synchronize()
    assert copy.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("name", "error"), [("tpu", "device must be cpu or cuda, not tpu"), ("cuda", "device cuda: ")])
def test_a_device_that_is_not_there(name: str, error: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("it is there")
    with pytest.raises(SetupError, match=error):
        find(name)
