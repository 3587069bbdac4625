"""The closed forms agree with the paper's tables, with the measured traffic of other libraries, and with each other."""

from __future__ import annotations

import pytest
from manapy.fcdp.costs import (
    COLLECTIVES,
    PRECISIONS,
    STRATEGIES,
    Links,
    Time,
    Volume,
    all_gather,
    bytes_per_node,
    flops,
    kept_share,
    largest_batch,
    largest_tau,
    memory,
    reduce_scatter,
    time,
)

GIB = 2**30
MIXED = PRECISIONS["mixed"]

# Table IV: layers, hidden size. GPT-2 blocks, 50257 tokens, 1024 positions. Embedding and head are separate, as the
# 31.04e9 parameters of GPT-30B require.
MODELS = {"10B": (40, 4800), "15B": (40, 5760), "20B": (40, 6656), "25B": (39, 7168), "30B": (40, 7936)}
# Tables V and VI: samples of all devices, 0 for out of memory.
MAX_BATCH = {
    2: {"zero3": (256, 128, 128, 64, 64), "hpz": (128, 128, 64, 32, 0), "fcdp": (256, 128, 128, 64, 64)},
    4: {"zero3": (512, 512, 256, 256, 256), "hpz": (512, 256, 256, 256, 128), "fcdp": (512, 512, 256, 256, 256)},
}


def parameters(name: str) -> float:
    layers, hidden = MODELS[name]
    return layers * (12 * hidden**2 + 13 * hidden) + 2 * 50257 * hidden + 1024 * hidden + 2 * hidden


def sent(strategy: str, trainable: float = 1.0, **options: object) -> float:
    """The bytes that one of the two nodes of two ranks sends, in units of all weights. Gradients are as large as their
    parameters."""
    phases = bytes_per_node(strategy, 2, 2, trainable, 1 - trainable, trainable, **options)  # type: ignore[arg-type]
    return phases.total.inter


# ---- collectives


def test_an_all_gather_by_hand() -> None:
    """2 nodes of 2 ranks, 4 bytes: every rank has one byte and needs three."""
    # 4 ranks send to 2 ranks of the other node: 8 in all; each has 1 neighbour: 4 in all
    assert all_gather(4, 2, 2, "pairwise") == Volume(inter=4, intra=2)
    assert all_gather(4, 2, 2, "ring") == Volume(inter=3, intra=3)  # 4 edges carry 3 each; 2 of them are between nodes
    # each rank sends its byte to its counterpart, then 2 bytes to its neighbour
    assert all_gather(4, 2, 2, "hierarchical") == Volume(inter=2, intra=4)
    assert reduce_scatter(4, 2, 2, "gloo") == Volume(inter=6, intra=6)


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_hierarchical_sends_the_least_over_the_network_and_every_rank_gets_all(nodes: int, gpus: int) -> None:
    size = 48.0 * nodes * gpus
    volumes = {name: all_gather(size, nodes, gpus, name) for name in COLLECTIVES}
    assert min(v.inter for v in volumes.values()) == volumes["hierarchical"].inter == size * (nodes - 1) / nodes
    arrived = (nodes * gpus - 1) * size / nodes  # each of a node's g ranks lacks everything except its shard
    assert all(v.inter + v.intra == pytest.approx(arrived) for name, v in volumes.items())
    assert nodes > 1 or all(v.inter == 0 for v in volumes.values())


# ---- strategies


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_node_needs_no_network(strategy: str, collective: str) -> None:
    assert bytes_per_node(strategy, 1, 4, 100, 50, 100, 3, first=True, collective=collective).total.inter == 0


def test_fcdp_sends_the_bound_of_an_all_reduce_whatever_the_micro_batches() -> None:
    for k in (1, 2, 4):
        phases = bytes_per_node("fcdp", 4, 8, 64.0, 6400.0, 32.0, k)
        assert (phases.forward.inter, phases.backward.inter, phases.reduce.inter) == (48, 0, 24)
        assert phases.total.inter <= bytes_per_node("mics", 4, 8, 64.0, 6400.0, 64.0, k).total.inter
    first = bytes_per_node("fcdp", 4, 8, 64.0, 6400.0, 32.0, first=True)
    assert first.forward.inter == 48 + 4800
    assert bytes_per_node("fcdp", 4, 8, 64.0, 6400.0, 32.0, first=True, local_weights=True).forward.inter == 48


def test_micro_batches() -> None:
    """Hierarchical coefficients of 2 nodes: one half of W = 1 for each gather of all weights, and for each sum of the
    gradients."""
    k, t = 4, 0.25
    assert sent("zero3", t, micro_batches=k) == k * (1 + t / 2)
    assert sent("hpz_naive", t, micro_batches=k) == k * (0.5 + t / 2)
    assert sent("hpz", t, micro_batches=k) == t / 2 + k * t / 2
    assert sent("mics", t, micro_batches=k) == t
    assert sent("fcdp", t, micro_batches=k) == t
    assert sent("fcdp_comm", t, micro_batches=k) == t / 2 + k * t / 2
    assert sent("fcdp_sched", t, micro_batches=k) == k * (0.5 + t / 2)


@pytest.mark.parametrize("strategy", ["hpz", "fcdp", "fcdp_comm"])
def test_frozen_parameters_cross_the_network_once(strategy: str) -> None:
    assert sent(strategy, 0.25, first=True) - sent(strategy, 0.25) == 0.75 / 2


def test_what_stays_on_the_device_is_not_loaded_again() -> None:
    none, half, everything = (bytes_per_node("fcdp", 2, 4, 8.0, 0.0, 8.0, kept=share) for share in (0, 0.5, 1))
    assert none.backward == Volume(intra=24, host=8)
    assert half.backward == Volume(intra=12, host=4)
    assert everything.backward == Volume()
    assert none.forward == half.forward == everything.forward == Volume(inter=4, intra=24, host=4 + 8)


@pytest.mark.parametrize(
    ("strategy", "full", "lora"),
    [
        # FSDP2, reshard_after_forward=True. DeepSpeed: 3.01 and 1.43; it isn't known why it sends 6 % less in LoRA
        ("zero3", 3.01, 1.52),
        ("hpz_naive", 2.26, 0.77),  # FSDP2, reshard_after_forward=2
        ("hpz", 2.26, 0.030),  # DeepSpeed
        ("mics", 1.00, 0.013),  # FSDP2, 2-D mesh
        ("fcdp", 1.00, 0.013),  # a sketch over mpi4py
    ],
)
def test_measured_peers(strategy: str, full: float, lora: float) -> None:
    """Bytes counted at the interfaces of 2 emulated nodes with 2 ranks each, over gloo, in units of the weights (59 MB,
    fp32). LoRA of rank 16 trains 1.3 %."""
    assert sent(strategy, collective="gloo") == pytest.approx(full, rel=0.01)
    assert sent(strategy, 0.0132, collective="gloo") == pytest.approx(lora, rel=0.02)


# ---- the paper's tables


def test_table_7() -> None:
    """GPT-30B in fp16, LoRA, 2 nodes of 8 devices, rings; both nodes together, in GiB. The paper doesn't give the
    trainable share; it is computed from FCDP-Comm's forward pass."""
    weights = 2 * parameters("30B")
    assert weights == pytest.approx(2 * 31.04e9, rel=1e-4)
    share = 0.06 / (2 * 15 / 16 * weights / GIB)
    assert share == pytest.approx(0.00055, rel=0.01)

    def row(strategy: str) -> tuple[float, float, float]:
        trained = share * weights
        # gradients in fp32
        phases = bytes_per_node(strategy, 2, 8, trained, weights - trained, 2 * trained, collective="ring")
        forward, backward = 2 * phases.forward.inter / GIB, 2 * (phases.backward.inter + phases.reduce.inter) / GIB
        return forward, backward, forward + backward

    zero3, naive, sched, comm = (row(name) for name in ("zero3", "hpz_naive", "fcdp_sched", "fcdp_comm"))
    assert naive == sched
    assert sched[0] == pytest.approx(108.41, abs=0.005) and sched[0] == pytest.approx(108.18, rel=0.0025)
    assert (round(sched[1], 1), round(comm[0], 2), round(comm[1], 1)) == (0.1, 0.06, 0.1)
    assert zero3 == pytest.approx((110.25, 103.48, 213.73), rel=0.05)
    assert 1 - sched[2] / zero3[2] == pytest.approx(0.493, abs=0.01)
    assert 1 - comm[2] / zero3[2] == pytest.approx(0.999, abs=0.0005)


def test_fifty_percent_is_of_the_gathers_and_a_third_of_all() -> None:
    """§IV-C and §VI-B."""
    zero3, sched = (bytes_per_node(name, 4, 8, 1.0, 0.0, 1.0) for name in ("zero3", "fcdp_sched"))
    gathers = [phases.forward.inter + phases.backward.inter for phases in (zero3, sched)]
    assert gathers[1] / gathers[0] == 0.5
    assert sched.total.inter / zero3.total.inter == pytest.approx(2 / 3)


def test_memory_of_section_6() -> None:
    """30B parameters in 2 bytes on 4 nodes of 8 devices. They are frozen, so that only parameters count."""
    needed = {name: memory(name, 4, 8, 0, 30e9, MIXED) for name in STRATEGIES}
    assert (
        needed["zero3"].device == needed["fcdp"].device == needed["fcdp_sched"].device == pytest.approx(1.9e9, rel=0.02)
    )
    assert needed["mics"].device == 7.5e9
    assert needed["hpz"].device == needed["hpz_naive"].device == 7.5e9 + needed["zero3"].device
    assert (needed["fcdp"].host, needed["zero3"].host, needed["hpz"].host) == (60e9, 0, 0)


def test_memory_of_training_all() -> None:
    """16 bytes for each parameter (ZeRO), and fcdp's sum of gradients in host memory."""
    assert (
        memory("zero3", 2, 8, 1e9, 0, MIXED).states == memory("zero3", 2, 8, 1e9, 0, PRECISIONS["fp32"]).states == 1e9
    )
    assert memory("mics", 2, 8, 1e9, 0, MIXED).states == 2e9
    assert (
        memory("fcdp", 2, 8, 1e9, 0, MIXED).host == memory("fcdp_comm", 2, 8, 1e9, 0, MIXED, 2).host == 2e9
        and memory("fcdp", 2, 8, 1e9, 0, MIXED, 2).host == 4e9
    )
    assert memory("fcdp", 2, 8, 1e9, 0, MIXED, unit=1e8).live == 6e8


def in_order(rows: dict[str, tuple[int, ...]]) -> bool:
    """FCDP equals ZeRO-3, hpZ is never more and sometimes less, and larger models are never more."""
    less = all(h <= z for h, z in zip(rows["hpz"], rows["zero3"], strict=True)) and rows["hpz"] != rows["zero3"]
    return (
        rows["fcdp"] == rows["zero3"] and less and all(list(row) == sorted(row, reverse=True) for row in rows.values())
    )


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("sample", [0.5e9, 1e9, 2e9, 4e9])
def test_order_of_tables_5_and_6(nodes: int, sample: float) -> None:
    """The paper says neither how much memory a sample takes nor how much DeepSpeed reserves. So the test checks only
    the order, for samples from small to large."""
    rows = {
        strategy: tuple(
            largest_batch(48e9, memory(strategy, nodes, 8, parameters(name), 0, MIXED, unit=12 * hidden**2), sample)
            for name, (_, hidden) in MODELS.items()
        )
        for strategy in MAX_BATCH[nodes]
    }
    assert in_order(rows) and in_order(MAX_BATCH[nodes])


def test_table_5_contradicts_section_6() -> None:
    """At 4 samples on each device GPT-30B fits under ZeRO-3, and GPT-25B doesn't under ZeRO++, though the larger model
    needs more by the closed form: ZeRO++ takes more than 2Ψ/g."""
    assert MAX_BATCH[2]["zero3"][4] == 4 * 16 > MAX_BATCH[2]["hpz"][3]
    assert (
        memory("zero3", 2, 8, parameters("30B"), 0, MIXED).states
        > memory("hpz", 2, 8, parameters("25B"), 0, MIXED).states
    )
    surplus = (
        memory("hpz", 2, 8, parameters("15B"), 0, MIXED).device
        - memory("zero3", 2, 8, parameters("15B"), 0, MIXED).device
    )
    assert 6.86e9 / surplus == pytest.approx(1.66, abs=0.01)  # §III-B


# ---- threshold and time


def test_with_the_largest_tau_a_device_is_never_overfull() -> None:
    """FCDP-Cache, unit by unit, with its activations last: the worst case."""
    layers, unit, device, activations = 40, 1e9, 100e9, 20e9
    needed = memory("fcdp", 2, 8, layers * unit, 0, MIXED, unit=unit)

    def peak(tau: float) -> float:
        kept = 0.0
        for _ in range(layers):
            if needed.states + kept < tau * device:
                kept += 2 * unit
        return needed.device + kept + activations

    tau = largest_tau(device, needed, activations)
    assert 0 < tau < 1 and peak(tau) <= device < peak(tau + 0.15)
    assert largest_tau(device, needed, 2 * device) == 0


def test_share_that_stays() -> None:
    needed = memory("fcdp", 2, 8, 16e9, 0, MIXED)  # 16 GB of states, 32 GB of weights
    assert kept_share(48e9, needed, 8e9, 0.5, 32e9) == 8 / 40
    assert kept_share(48e9, needed, 8e9, 0.0, 32e9) == 0
    assert kept_share(48e9, needed, 24e9, 1.0, 32e9) == 8 / 32
    assert kept_share(24e9, needed, 9e9, 1.0, 32e9) == 0
    assert kept_share(480e9, needed, 8e9, 0.9, 32e9) == 1


@pytest.mark.parametrize(("gbit", "measured"), [(10, 6.745), (1, 67.66)])
def test_table_3(gbit: float, measured: float) -> None:
    """16 GB gathered over Ethernet, in the paper's seconds: the time for one half (the part of the other node of two),
    and about 5 % more."""
    alone = time(all_gather(16e9, 2, 1, "ring"), 1, 0.0, Links(inter=gbit * 1e9 / 8, intra=1, host=1)).inter
    assert measured == pytest.approx(alone * 1.055, rel=0.005)


def test_time_is_between_all_at_once_and_one_after_the_other() -> None:
    seconds = time(Volume(inter=20, intra=80, host=8), 4, 5.0, Links(inter=2, intra=10, host=2))
    assert seconds == Time(compute=5, inter=10, intra=2, host=1)
    assert (seconds.step(0), seconds.step(0.5), seconds.step(1)) == (18, 14, 10)


def test_frozen_parameters_have_no_gradients_of_their_own() -> None:
    assert flops(10, 0, 7) == 420 and flops(0, 10, 7) == 280


# ---- invalid arguments


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strategy": "zero4"}, "no strategy 'zero4' (there are fcdp, zero3,"),
        ({"collective": "tree"}, "no collective 'tree'"),
        ({"nodes": 0}, "at least 1 node"),
        ({"gpus": 0}, "at least 1 node"),
        ({"frozen": -1}, "frozen can't be -1"),
        ({"gradient": float("nan")}, "gradient can't be nan"),
        ({"micro_batches": 0}, "at least 1 micro-batch"),
        ({"kept": 1.5}, "between 0 and 1"),
    ],
)
def test_errors(change: dict[str, object], said: str) -> None:
    good = {"strategy": "fcdp", "nodes": 2, "gpus": 2, "trainable": 4.0, "frozen": 4.0, "gradient": 4.0}
    with pytest.raises(ValueError) as caught:
        bytes_per_node(**{**good, **change})  # type: ignore[arg-type]
    assert said in str(caught.value)
