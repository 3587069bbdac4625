"""The layout of a training job over its ranks, and the order in which each pipeline stage works on its micro-batches.

    tp=2,pp=4,dp=2,micro=8[,kind=1f1b|gpipe|interleaved][,chunks=2][,order=tp-dp-pp|tp-pp-dp]

Ranks are counted as by Megatron-LM: tensor-parallel neighbours first, then replicas, then stages (order tp-dp-pp, its
default); tp-pp-dp has the stages of one replica side by side. A block is the forward or the backward pass of one
micro-batch through one chunk of a stage's layers. Sources of the orders: 1F1B and interleaved, Narayanan et al.,
"Efficient large-scale language model training on GPU clusters using Megatron-LM" (SC'21), section 2.2, and
Megatron-LM's schedules; GPipe, Huang et al. (NeurIPS'19), backward passes in the order of the forward passes, as
PyTorch has them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ...core.errors import ManapyError

KINDS = ("1f1b", "gpipe", "interleaved")
ORDERS = ("tp-dp-pp", "tp-pp-dp")


class ScheduleError(ManapyError):
    """A schedule is invalid, or does not fit the trace. The message is a one-line reason."""


@dataclass(frozen=True)
class ScheduleBlock:
    """One block: the forward or backward pass of one micro-batch through one chunk."""

    backward: bool
    chunk: int
    micro: int


@dataclass(frozen=True)
class Schedule:
    """The layout of a job and the order of its blocks.

    tp, pp, dp: number of ranks in each direction.
    micro: micro-batches of one replica in an iteration.
    kind: one of KINDS.
    chunks: chunks of a stage's layers (1 unless interleaved).
    order: one of ORDERS.

    Raises ScheduleError if the values are invalid.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    micro: int = 1
    kind: str = "1f1b"
    chunks: int = 1
    order: str = ORDERS[0]

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "micro", "chunks"):
            if getattr(self, name) < 1:
                raise ScheduleError(f"schedule: {name}={getattr(self, name)} is not a positive number")
        if self.kind not in KINDS:
            raise ScheduleError(f"schedule: no kind '{self.kind}' (there are {', '.join(KINDS)})")
        if self.order not in ORDERS:
            raise ScheduleError(f"schedule: no order '{self.order}' (there are {', '.join(ORDERS)})")
        if self.kind != "interleaved" and self.chunks > 1:
            raise ScheduleError(f"schedule: chunks={self.chunks} needs kind=interleaved")
        if self.kind == "interleaved":
            if self.chunks < 2 or self.pp < 2:
                raise ScheduleError("schedule: kind=interleaved needs chunks and pp of at least 2")
            if self.micro % self.pp:
                raise ScheduleError(
                    f"schedule: kind=interleaved needs micro to be a multiple of pp, and {self.micro} is none of "
                    f"{self.pp}"
                )

    @property
    def size(self) -> int:
        """Number of ranks of the job."""
        return self.tp * self.pp * self.dp

    @property
    def blocks(self) -> int:
        """Number of blocks of one stage in one iteration."""
        return 2 * self.micro * self.chunks

    @property
    def flat(self) -> bool:
        """Return whether all ranks do the same at the same time, as with TP alone or DP alone. Then no call separates
        one block or iteration from the next."""
        return self.pp == 1 and 1 in (self.tp, self.dp)

    def __str__(self) -> str:
        more = [f"kind={self.kind}"] if self.kind != KINDS[0] else []
        more += [f"chunks={self.chunks}"] if self.chunks > 1 else []
        more += [f"order={self.order}"] if self.order != ORDERS[0] else []
        return ",".join([f"tp={self.tp},pp={self.pp},dp={self.dp},micro={self.micro}", *more])

    @functools.cached_property
    def ranks(self) -> np.ndarray:
        """World ranks [stage, replica, shard], int32. A row along the last axis is a TP group, along the second axis a
        DP group, along the first axis a PP group."""
        ranks = np.arange(self.size, dtype=np.int32)
        if self.order == "tp-dp-pp":
            return ranks.reshape(self.pp, self.dp, self.tp)
        return ranks.reshape(self.dp, self.pp, self.tp).transpose(1, 0, 2)

    @functools.cached_property
    def places(self) -> np.ndarray:
        """(stage, replica, shard) of each world rank, [size, 3]."""
        places = np.empty((self.size, 3), np.int32)
        places[self.ranks.ravel()] = np.stack(np.unravel_index(np.arange(self.size), self.ranks.shape), axis=1)
        return places

    def blocks_of(self, stage: int) -> tuple[ScheduleBlock, ...]:
        """Return the blocks of a stage in the order in which it works on them, [blocks]."""
        return _order(self, stage)

    def place_of(self, stage: int, block: ScheduleBlock) -> int:
        """Return the place of a block in its stage's order."""
        return _index(self, stage)[block]

    def source(self, stage: int, block: ScheduleBlock) -> tuple[int, ScheduleBlock] | None:
        """Return the stage and the block whose message this block waits for, or None."""
        last = self.pp - 1
        if not block.backward:
            if stage > 0:
                return stage - 1, block
            return (last, ScheduleBlock(False, block.chunk - 1, block.micro)) if block.chunk else None
        if stage < last:
            return stage + 1, block
        return (0, ScheduleBlock(True, block.chunk + 1, block.micro)) if block.chunk < self.chunks - 1 else None

    def target(self, stage: int, block: ScheduleBlock) -> tuple[int, ScheduleBlock] | None:
        """Return the stage and the block that wait for this block's message, or None."""
        last = self.pp - 1
        if not block.backward:
            if stage < last:
                return stage + 1, block
            return (0, ScheduleBlock(False, block.chunk + 1, block.micro)) if block.chunk < self.chunks - 1 else None
        if stage > 0:
            return stage - 1, block
        return (last, ScheduleBlock(True, block.chunk - 1, block.micro)) if block.chunk else None


def parse(text: str) -> Schedule:
    """Return the schedule that the text of `--schedule` describes. Raises ScheduleError."""
    values: dict[str, int | str] = {}
    for item in text.replace(" ", "").split(","):
        name, equals, value = item.partition("=")
        if not equals or name not in ("tp", "pp", "dp", "micro", "chunks", "kind", "order"):
            raise ScheduleError(
                f"schedule: '{item}' is not one of tp=N, pp=N, dp=N, micro=N, kind=NAME, chunks=N, order=NAME"
            )
        if name in values:
            raise ScheduleError(f"schedule: {name} is there twice")
        if name in ("kind", "order"):
            values[name] = value.lower()
        elif value.isdecimal():
            values[name] = int(value)
        else:
            raise ScheduleError(f"schedule: {name}={value} is not a positive number")
    if values.get("kind") == "interleaved":
        values.setdefault("chunks", 2)
    return Schedule(**values)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _order(schedule: Schedule, stage: int) -> tuple[ScheduleBlock, ...]:
    forward, backward = (
        [ScheduleBlock(back, *_virtual(schedule, k, back)) for k in range(schedule.micro * schedule.chunks)]
        for back in (False, True)
    )
    total = len(forward)
    if schedule.kind == "gpipe":
        return (*forward, *backward)
    ahead = schedule.pp - stage - 1
    if schedule.kind == "interleaved":
        ahead = total if schedule.micro == schedule.pp else 2 * ahead + (schedule.chunks - 1) * schedule.pp
    ahead = min(ahead, total)
    steady = [block for pair in zip(forward[ahead:], backward, strict=False) for block in pair]
    return (*forward[:ahead], *steady, *backward[total - ahead :])


def _virtual(schedule: Schedule, k: int, backward: bool) -> tuple[int, int]:
    """Return chunk and micro-batch of a stage's k-th forward or backward pass. In an interleaved schedule a stage takes
    pp micro-batches through each chunk in turn."""
    if schedule.chunks == 1:
        return 0, k
    group, place = divmod(k, schedule.pp * schedule.chunks)
    chunk, micro = divmod(place, schedule.pp)
    return schedule.chunks - 1 - chunk if backward else chunk, group * schedule.pp + micro


@functools.lru_cache(maxsize=4096)
def _index(schedule: Schedule, stage: int) -> dict[ScheduleBlock, int]:
    return {block: place for place, block in enumerate(_order(schedule, stage))}
