"""Work requests, as the tests of lowerhalf/rdma make them and as drivers/show_work.h prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from compiling import LOWER, SANITIZED, build_core
from hypothesis import strategies as st

DRIVERS = Path(__file__).resolve().parent / "drivers"

# enum ibv_wr_opcode and enum ibv_send_flags of infiniband/verbs.h
(
    RDMA_WRITE,
    RDMA_WRITE_WITH_IMM,
    SEND,
    SEND_WITH_IMM,
    RDMA_READ,
    CMP_AND_SWP,
    FETCH_AND_ADD,
    LOCAL_INV,
    BIND_MW,
    SEND_WITH_INV,
) = range(10)
FENCE, SIGNALED, SOLICITED, INLINE = 1, 2, 4, 8
ATOMICS = {CMP_AND_SWP, FETCH_AND_ADD}
REMOTE = {RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ} | ATOMICS
CARRY_BYTES = {RDMA_WRITE, RDMA_WRITE_WITH_IMM, SEND, SEND_WITH_IMM, SEND_WITH_INV}  # these can be inline
EXTRA = {RDMA_WRITE_WITH_IMM, SEND_WITH_IMM, SEND_WITH_INV}  # these have immediate data or a key to invalidate

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)


def build(output: Path, sources: list[Path], *options: str | Path, sanitizers: Sequence[str] = SANITIZED) -> Path:
    """Build a program or library with files of lowerhalf/rdma, with sanitizers."""
    if not Path("/usr/include/infiniband/mlx5dv.h").exists():
        pytest.skip("libibverbs-dev is not installed")
    return build_core(output, sources, f"-I{LOWER / 'rdma'}", *sanitizers, *options)


@dataclass(frozen=True)
class Send:
    """What a program gives to ibv_post_send; elements are (address, length, key)."""

    wr_id: int
    opcode: int
    flags: int
    extra: int
    remote: tuple[int, int]
    operands: tuple[int, int]
    elements: tuple[tuple[int, int, int], ...]
    data: bytes

    def shown(self) -> dict[str, Any]:
        """The request as show_work.h prints it when it has never been posted again."""
        length = len(self.data) if self.flags & INLINE else sum(n for _, n, _ in self.elements)
        return {
            "wr_id": self.wr_id,
            "opcode": self.opcode,
            "flags": self.flags,
            "extra": self.extra,
            "length": length,
            "first_psn": 0,
            "packets": 0,
            "remote": list(self.remote),
            "operands": list(self.operands),
            "sge": [list(element) for element in self.elements],
            "inline": self.data.hex(),
            "next": False,
        }


@dataclass(frozen=True)
class Recv:
    """What a program gives to ibv_post_recv."""

    wr_id: int
    elements: tuple[tuple[int, int, int], ...]

    def shown(self) -> dict[str, Any]:
        return {
            "wr_id": self.wr_id,
            "length": sum(n for _, n, _ in self.elements),
            "sge": [list(element) for element in self.elements],
            "inline": "",
            "next": False,
        }


def elements(most: int, shortest: int = 0) -> st.SearchStrategy[tuple[tuple[int, int, int], ...]]:
    return st.lists(st.tuples(u64, st.integers(shortest, 2**31 - 1), u32), max_size=most).map(tuple)


@st.composite
def sends(draw: st.DrawFn, max_sge: int, max_inline: int, shortest: int = 0) -> Send:
    """A request that a reliable connection can carry. Its elements have at least `shortest` bytes (so have inline data,
    if that isn't 0)."""
    opcode = draw(st.sampled_from(sorted(REMOTE | CARRY_BYTES)))
    flags = draw(st.integers(0, 7))
    data = (
        draw(st.binary(min_size=shortest, max_size=max_inline))
        if opcode in CARRY_BYTES and max_inline >= shortest and draw(st.booleans())
        else None
    )
    if opcode in ATOMICS:
        scatter = ((draw(u64), 8, draw(u32)),)
    else:
        scatter = draw(elements(max_sge, shortest)) if data is None else ()
    return Send(
        wr_id=draw(u64),
        opcode=opcode,
        flags=flags | (0 if data is None else INLINE),
        extra=draw(u32) if opcode in EXTRA else 0,
        remote=(draw(u64), draw(u32)) if opcode in REMOTE else (0, 0),
        operands=(draw(u64), draw(u64) if opcode == CMP_AND_SWP else 0) if opcode in ATOMICS else (0, 0),
        elements=scatter,
        data=data or b"",
    )


def recvs(max_sge: int, shortest: int = 0) -> st.SearchStrategy[Recv]:
    return st.builds(Recv, u64, elements(max_sge, shortest))
