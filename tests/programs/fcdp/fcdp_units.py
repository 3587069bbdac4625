"""The engine of manapy.fcdp call by call, on 2 emulated nodes of 2 ranks: units that are used seldom, evicted, or
loaded again; and calls in a wrong order."""

from __future__ import annotations

import time

import numpy as np

from manapy.fcdp import Engine, Phase, Topology, Unit
from manapy.fcdp.engine.strategy import STRATEGIES, Keep
from manapy.fcdp.engine.traffic import Scope
from manapy.fcdp.engine.unit_state import Placement
from manapy.fcdp.errors import BudgetError, OrderError, RemoteError, SetupError

SIZE = 37
topology = Topology(ranks_per_node=2)
one, two, three = (
    Unit(name, (("w", (SIZE,)),), dtype="float64", trainable=name != "three") for name in ("one", "two", "three")
)
VALUES = np.arange(SIZE, dtype=float)
last = topology.rank == topology.size - 1


def use(engine: Engine, name: str, expected: float, phase: Phase = Phase.FORWARD) -> None:
    """The unit holds VALUES + expected."""
    assert (engine.gather(name, phase)["w"] == VALUES + expected).all(), (name, expected)
    engine.release(name)


def add(engine: Engine, name: str, amount: float) -> None:
    """Add this rank's gradient: its number plus one, times the amount."""
    engine.gradients(name)["w"][:] += amount * (topology.rank + 1)
    engine.reduce(name)


def step(engine: Engine, expected: dict[str, float]) -> None:
    """Check that gradients are as expected, times 1 + 2 + 3 + 4, and add them to the values."""
    for shard in engine.shards:
        whole = shard.gradient[shard.gradient != 0]  # without padding
        assert (whole == expected.get(shard.unit, 0) * 10).all(), (shard, expected)
        assert len(whole) > 0 or shard.unit not in expected
        shard.values[:] += shard.gradient
    engine.updated()


def no_disk(start: int, stop: int) -> np.ndarray:
    """A slice that one rank cannot read."""
    raise ValueError("no disk")


def refused(error: type[Exception], text: str, call: object, *arguments: object) -> None:
    """The call raises."""
    try:
        call(*arguments)  # type: ignore[operator]
    except error as raised:
        assert text in str(raised), raised
    else:
        raise AssertionError(f"not refused: {text}")


for strategy in STRATEGIES:
    with Engine(topology, [one, two, three], strategy=strategy) as engine:
        for name in ("one", "two", "three"):
            engine.load(name, {"w": VALUES})
            use(engine, name, 0)
        engine.last_micro_batch = False  # only the first micro-batch uses `two`, both use `one`
        add(engine, "two", 1)
        add(engine, "one", 1)
        engine.finish()
        refused(OrderError, "call updated() after finish()", engine.updated)
        engine.last_micro_batch = True
        use(engine, "one", 0)
        add(engine, "one", 2)
        refused(OrderError, "gradients are incomplete", engine.clip_gradients, 1.0)
        engine.finish()
        refused(OrderError, "call updated()", engine.gradients, "one")
        for norm in (-1.0, np.nan):  # these would reverse gradients, or leave them unchanged
            refused(SetupError, "max_norm must be 0 or more", engine.clip_gradients, norm)
        step(engine, {"one": 3, "two": 1})
        use(engine, "one", 30)
        use(engine, "two", 10)
        use(engine, "three", 0)
        engine.finish()  # nothing has a gradient
        step(engine, {})
        use(engine, "two", 10, Phase.BACKWARD)
        engine.load("three", {"w": VALUES + 5})  # a frozen unit changes
        use(engine, "three", 5)
        # as a node reads it from its disk
        engine.load_slice("three", lambda start, stop: np.append(VALUES + 6, np.zeros(3))[start:stop])
        assert engine.placement()["three"] is {Keep.HOST: Placement.HOST, Keep.NOWHERE: Placement.SHARDS}.get(
            engine.strategy.keep, Placement.NODE
        )
        refused(
            ValueError if last else RemoteError,
            "no disk",
            engine.load_slice,
            "three",
            no_disk if last else lambda start, stop: VALUES[0],
        )
        use(engine, "three", 6)
        refused(OrderError, "frozen", engine.gradients, "three")
        refused(OrderError, "without gradients", engine.reduce, "one")
        refused(OrderError, "without being gathered", engine.release, "one")
        refused(SetupError, "no unit 'four'", engine.gather, "four", Phase.FORWARD)
        refused(SetupError, "other parameters", engine.load, "one", {"v": VALUES})
        engine.gather("one", Phase.FORWARD)
        refused(OrderError, "gathered already", engine.gather, "one", Phase.FORWARD)
        refused(OrderError, "can't be loaded", engine.load, "one", {"w": VALUES})
    refused(OrderError, "inside `with engine:`", engine.load, "three", {"w": VALUES})

whole = 40 * 8  # bytes of a unit with its padding
with Engine(topology, [one, two, three], tau=1) as engine:
    stays = engine.arena.used
with Engine(topology, [one, two, three], tau=1, budget=stays + 2 * whole) as engine:
    for name in ("one", "two", "three"):
        engine.load(name, {"w": VALUES})
    for expected in (0, 10):
        # there is room for two: the third evicts one, and values that an update has changed are not used again
        for name in ("one", "two", "three"):
            use(engine, name, expected if name != "three" else 0)
            assert engine.arena.used <= stays + 2 * whole
        add(engine, "one", 1)
        add(engine, "two", 1)
        engine.finish()
        step(engine, {"one": 1, "two": 1})
    block = engine.hold(2 * whole, "activations")  # evicts all
    assert engine.arena.used == stays + 2 * whole
    refused(BudgetError, "unit 'one' needs 320 bytes", engine.gather, "one", Phase.FORWARD)
    block.free()
    use(engine, "one", 20)
limit = stays + 10 * whole
# units that come first are kept first (the FCDP paper, section IV-D)
for held, left in (
    (0, ["device", "device", "host"]),
    (whole, ["device", "host", "host"]),
    (2 * whole, ["host", "host", "host"]),
):
    with Engine(topology, [one, two, three], tau=(stays + 2.5 * whole) / limit, budget=limit) as engine:
        for name in ("one", "two", "three"):
            engine.load(name, {"w": VALUES})
        assert set(engine.placement().values()) == {Placement.SHARDS}
        activations = engine.hold(held, "activations")
        for name in ("one", "two", "three"):
            use(engine, name, 0)
        assert [where.value for where in engine.placement().values()] == left
        before = engine.traffic.bytes[Phase.BACKWARD, Scope.INTRA]
        for name in ("three", "two", "one"):  # units that are still on the device are not copied again
            use(engine, name, 0, Phase.BACKWARD)
        assert engine.traffic.bytes[Phase.BACKWARD, Scope.INTRA] == before + left.count("host") * whole // 2
        activations.free()
        engine.finish()
        step(engine, {})
        assert [where.value for where in engine.placement().values()][:2] == [
            "shards",
            "shards",
        ] and engine.placement()["three"] is not Placement.SHARDS
# a kept unit stays when it is used, though the one to be copied ahead doesn't fit beside it then
options = {"tau": 1, "budget": stays + 4 * whole, "prefetch": 1, "copies_ahead": True}
with Engine(topology, [one, two, three], **options) as engine:  # type: ignore[arg-type]
    for name in ("one", "two", "three"):
        engine.load(name, {"w": VALUES})
    for name in ("three", "two", "one"):
        use(engine, name, 0)
    activations = engine.hold(3 * whole, "activations")
    assert list(engine.placement().values()) == [Placement.DEVICE, Placement.HOST, Placement.HOST]
    use(engine, "one", 0)
    activations.free()
    for _ in range(2):  # what the program has looked at, and may have changed, isn't kept
        engine.gather("one", Phase.STATE)["w"][:] = 7
        engine.release("one")
        use(engine, "one", 0)
        assert engine.placement()["one"] is Placement.DEVICE
with Engine(topology, [one, two, three]) as engine:
    for name in ("one", "two", "three"):
        engine.load(name, {"w": VALUES})
    engine.gather("one", Phase.FORWARD)
    # the other units arrive while the program computes; otherwise this loop never ends
    while engine.traffic.bytes[Phase.FORWARD, Scope.INTER] < 3 * whole // topology.size:
        time.sleep(0.001)
    engine.release("one")


class Shelf:
    """The program's own place for a unit; it is empty between uses."""

    def __init__(self, nbytes: int) -> None:
        self.memory: np.ndarray | None = None
        self._nbytes = nbytes

    def take(self) -> np.ndarray:
        assert self.memory is None
        self.complete = False
        self.memory = np.full(self._nbytes, 255, np.uint8)
        return self.memory

    def filled(self) -> None:
        assert self.memory is not None and not self.complete
        self.complete = True

    def settle(self) -> None:
        """No copy runs in the background."""

    def give_back(self) -> None:
        assert self.memory is not None
        self.memory = None


half = Unit("half", (("w", (SIZE,)),), gathered_as="float16")
for strategy in STRATEGIES:
    shelf = Shelf(40 * 2)
    with Engine(topology, [half], strategy=strategy, places={"half": shelf}) as engine:
        engine.load("half", {"w": VALUES + 0.25})
        gathered = engine.gather("half", Phase.FORWARD)["w"]
        assert (
            gathered.dtype == np.float16
            and np.shares_memory(gathered, shelf.memory)
            and shelf.complete
            and (gathered == VALUES + 0.25).all()
        )
        engine.release("half")
        assert shelf.memory is None
        sent = engine.report()["forward"]
        assert sent == {"inter": 0 if strategy == "mics" else 40, "intra": 80}, (strategy, sent)
        engine.gradients("half")["w"][:] = 2.0**-26  # zero, in float16
        engine.reduce("half")
        engine.finish()
        for shard in engine.shards:
            assert set(shard.gradient) <= {0, 2.0**-24} and shard.gradient.any()
            shard.values[:] += 2.0**24 * shard.gradient
        engine.updated()
        assert (engine.gather("half", Phase.FORWARD)["w"] == VALUES + 1.25).all()
        engine.release("half")

if topology.rank == 0:
    print("ok", flush=True)
