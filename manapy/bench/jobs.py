"""The jobs that can be measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .calls import apps, imb, latency
from .checkpoints import dmtcp, images, message_counts, trees, ways
from .rdma import connections, failing_training, fallback, storm, throughput, verbs
from .scale import load
from .shared.commands import BenchError, LeftOutError, Setting
from .shared.samples import CLOCK, FCDP, MANAPY, SHIFT, Row
from .trace import overhead


@dataclass(frozen=True)
class Job:
    """title: shown to users; seconds: approximate duration with the default settings on two processors; guest: the job
    needs the virtual machine and runs only on request."""

    title: str
    seconds: float
    measure: Callable[[Setting], list[Row]]
    guest: bool = False


def _late(module: str, name: str, setting: Setting) -> list[Row]:
    """A job of a module that is imported only when needed, because it needs numpy."""
    measure: Callable[[Setting], list[Row]] = getattr(importlib.import_module(f".{module}", __package__), name)
    return measure(setting)


JOBS: dict[str, Job] = {
    "calls": Job("one call on one rank, without any waiting (--no-trace), and what recording adds", 12, latency.calls),
    "p2p": Job("point-to-point latency", 10, latency.p2p),
    "rate": Job("many small operations one after the other, with and without recording", 20, latency.rate),
    "blocking": Job("latency of blocking collectives (Figure 5 a)", 40, latency.blocking),
    "nonblocking": Job("latency of nonblocking collectives (Figure 5 b)", 25, latency.nonblocking),
    "overlap": Job("overlap of communication and computation (Figure 6)", 45, latency.overlap),
    "python": Job("latency with mpi4py", 70, latency.python),
    "apps": Job("whole programs: rates of calls, run time (Table 1, Figure 7)", 110, apps.rates),
    "scaling": Job("run time over the number of ranks (Figure 8)", 40, apps.scaling),
    "startup": Job("start of a job", 10, apps.startup),
    "small": Job("checkpoint and restart of a small program", 15, images.small),
    "trees": Job("checkpoint of ranks that are trees of four processes, against single ones", 25, trees.trees),
    "large": Job("checkpoint and restart of a large program, against dd", 70, images.large),
    "sizes": Job("checkpoint and restart time over image size (Figure 9)", 100, images.by_size),
    "images": Job("ways to write and to read images, compared", 600, ways.images),
    "dmtcp": Job("one process without MPI: the same, and by the DMTCP that is on PATH", 120, dmtcp.compare),
    "messages": Job(
        "messages and rounds of a checkpoint over the number of ranks, in the model", 20, message_counts.messages
    ),
    "scale": Job("checkpoints with many ranks, which are stubs, and the agents of their nodes", 60, load.scale),
    "imb": Job("the Intel MPI Benchmarks, as Intel built them", 60, imb.imb),
    "verbs": Job("one data verb through libmanapy_shift.so, over a provider that does nothing", 30, verbs.verbs),
    **{
        program: Job(
            f"{program} while a rail fails and comes back (SHIFT's Figure 8)",
            240,
            partial(throughput.throughput, program),
            guest=True,
        )
        for program in ("ib_write_bw", "ib_send_bw", "ib_read_bw")
    },
    "fallback": Job("time of a fallback, by steps, with 1, 10 and 100 queue pairs", 240, fallback.fallback, guest=True),
    "control": Job(
        "each control verb, and the set-up of the backups (SHIFT's Figure 9)", 120, connections.control, guest=True
    ),
    "write-lat": Job(
        "ib_write_lat, also beside 500 idle queue pairs (SHIFT's Table 1)", 300, connections.write_latency, guest=True
    ),
    "memory": Job("memory of a protected queue pair", 90, connections.memory, guest=True),
    "storm": Job("200 random failures under a program that checks every byte", 1000, storm.storm, guest=True),
    "training": Job(
        "a training job over MPI while its rail fails, five cases (SHIFT's Figure 10)",
        360,
        failing_training.training,
        guest=True,
    ),
    "hangs": Job(
        "stuck ranks, their places and causes, in simulated training jobs (MegaTrace's Figure 7)",
        80,
        partial(_late, "trace.diagnosis", "hangs"),
    ),
    "slowdowns": Job(
        "ranks that make an iteration slow, and the cost (MegaTrace's Figure 7)",
        60,
        partial(_late, "trace.diagnosis", "slowdowns"),
    ),
    "locations": Job(
        "extra work at places with and without slack (MegaTrace's Figure 12)",
        10,
        partial(_late, "trace.diagnosis", "locations"),
    ),
    "thresholds": Job(
        "precision and recall over both thresholds (MegaTrace's Figure 13)",
        150,
        partial(_late, "trace.diagnosis", "thresholds"),
    ),
    "analysis": Job(
        "time from recorded calls to a verdict, over the number of ranks (MegaTrace's Figure 8)",
        60,
        partial(_late, "trace.diagnosis", "scaling"),
    ),
    "alarms": Job("false alarms in a million healthy iterations", 300, partial(_late, "trace.diagnosis", "alarms")),
    "overhead": Job("cost of recorders in a training loop (MegaTrace's Figure 9)", 330, overhead.overhead),
    "watching": Job(
        "processor time and memory of a watch of a training job (MegaTrace's Figure 11)",
        150,
        partial(_late, "trace.live", "watching"),
    ),
    "cases": Job(
        "a missing Recv, and a node with too few processors (MegaTrace's case studies)",
        60,
        partial(_late, "trace.live", "cases"),
    ),
    "healthy": Job(
        "false alarms while a real training job is watched, --minutes of it",
        610,
        partial(_late, "trace.live", "healthy"),
    ),
    "fcdp-bytes": Job(
        "bytes that a node of a sharded training sends, by phase, at the interfaces (FCDP's Table VII)",
        60,
        partial(_late, "fcdp.sharded_bytes", "bytes_sent"),
    ),
    "fcdp-reduction": Job(
        "bytes of LoRA against zero3's (FCDP's Table VII)", 10, partial(_late, "fcdp.sharded_bytes", "reduction")
    ),
    "fcdp-memory": Job(
        "largest batch that a device takes, memory of a host (FCDP's Tables V and VI)",
        80,
        partial(_late, "fcdp.sharded_memory", "memory"),
    ),
    "fcdp-paths": Job(
        "time to get parameters, by their place (FCDP's Table III)", 25, partial(_late, "fcdp.sharded_times", "paths")
    ),
    "fcdp-overlap": Job(
        "time of a step over a slow link, with and without the cache on the device (FCDP's Figures 5 to 8)",
        115,
        partial(_late, "fcdp.sharded_times", "overlap"),
    ),
    "fcdp-retention": Job(
        "time of a step over links of decreasing speed (FCDP's Figure 9)",
        150,
        partial(_late, "fcdp.sharded_times", "retention"),
    ),
    "fcdp-timeline": Job(
        "bytes that a node sends, over time (FCDP's Figure 10)", 12, partial(_late, "fcdp.sharded_times", "timeline")
    ),
    "fcdp-fsdp2": Job(
        "sharded training by manapy and by PyTorch's FSDP2 over slow links: bytes, time, memory",
        1250,
        partial(_late, "fcdp.peers", "fsdp2"),
    ),
    "fcdp-deepspeed": Job(
        "sharded training by manapy and by DeepSpeed over slow links: the same",
        600,
        partial(_late, "fcdp.peers", "zero"),
    ),
    "fcdp-nodes": Job(
        "throughput of sharded training over the number of nodes (FCDP's Figures 5 and 7)",
        200,
        partial(_late, "fcdp.peers", "by_nodes"),
    ),
    "fcdp-batches": Job(
        "throughput of sharded training over the batch (FCDP's Figures 6 and 8)",
        240,
        partial(_late, "fcdp.peers", "by_batch"),
    ),
    "loop": Job(
        "useful work per time while ranks, hosts and links fail, by manapy and by two scripts, on emulated nodes",
        4000,
        partial(_late, "loop.goodput", "goodput"),
    ),
    "untouched": Job(
        "healthy jobs that look suspicious, under `manapy run`, for --minutes",
        620,
        partial(_late, "loop.untouched", "untouched"),
    ),
}
LOOP_JOBS = ["loop", "untouched"]
TRACE_JOBS = [
    "hangs",
    "slowdowns",
    "locations",
    "thresholds",
    "analysis",
    "alarms",
    "overhead",
    "watching",
    "cases",
    "healthy",
]
FCDP_JOBS = [name for name in JOBS if name.startswith("fcdp-")]
SHIFT_JOBS = ["verbs", *(name for name, job in JOBS.items() if job.guest)]


def measure(name: str, setting: Setting, left_out: dict[str, str]) -> list[Row]:
    """The rows of one job. If the job can't run here, left_out[name] gives the reason. If it fails as a whole, it has
    one row, which gives the reason."""
    try:
        return JOBS[name].measure(setting)
    except LeftOutError as error:
        left_out[name] = str(error)
        return []
    except BenchError as error:
        return [Row(name, JOBS[name].title, "", failures={_ours(name): str(error)})]


def _ours(name: str) -> str:
    """The variant that a job is about."""
    return (
        SHIFT
        if name in SHIFT_JOBS
        else MANAPY
        if name in TRACE_JOBS + LOOP_JOBS
        else FCDP
        if name in FCDP_JOBS
        else CLOCK
    )
