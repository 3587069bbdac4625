"""lowerhalf/rdma/requests/rewind_mlx5.c on queues written here, segment by segment, after infiniband/mlx5dv.h and the
provider's post_send. It was never used with a real RNIC of this kind."""

from __future__ import annotations

import errno
import struct
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rewinder import Rewinder, last
from rounds import rounds
from work_requests import (
    ATOMICS,
    CMP_AND_SWP,
    EXTRA,
    FENCE,
    FETCH_AND_ADD,
    INLINE,
    RDMA_READ,
    RDMA_WRITE,
    RDMA_WRITE_WITH_IMM,
    REMOTE,
    SEND,
    SEND_WITH_IMM,
    SEND_WITH_INV,
    SIGNALED,
    SOLICITED,
    Recv,
    Send,
    recvs,
    sends,
)

OPCODES = {
    SEND_WITH_INV: 0x01,
    RDMA_WRITE: 0x08,
    RDMA_WRITE_WITH_IMM: 0x09,
    SEND: 0x0A,
    SEND_WITH_IMM: 0x0B,
    RDMA_READ: 0x10,
    CMP_AND_SWP: 0x11,
    FETCH_AND_ADD: 0x12,
}
BLOCK = 64


class SendQueue:
    """A send queue of `blocks` 64-byte blocks. posted: the number of blocks posted before the queue is first looked
    at."""

    def __init__(self, blocks: int, qpn: int, posted: int = 0, small_fence: bool = False) -> None:
        self.bytes = bytearray(Random(blocks).randbytes(blocks * BLOCK)) if posted else bytearray(blocks * BLOCK)
        self.qpn, self.posted, self.small_fence = qpn, posted, small_fence

    def request(self, wr: Send, opcode: int | None = None, modifier: int = 0) -> bytes:
        body = b""
        if wr.opcode in REMOTE:
            body += struct.pack(">QII", *wr.remote, 0)
        if wr.opcode == CMP_AND_SWP:
            body += struct.pack(">QQ", wr.operands[1], wr.operands[0])  # swap or addend, then the value to compare with
        elif wr.opcode == FETCH_AND_ADD:
            body += struct.pack(">QQ", wr.operands[0], 0)
        if wr.flags & INLINE:
            if wr.data:
                inline = struct.pack(">I", len(wr.data) | 0x80000000) + wr.data
                body += inline.ljust(-(-len(inline) // 16) * 16, b"\x55")
        else:
            body += b"".join(struct.pack(">IIQ", n, key, address) for address, n, key in wr.elements)
        flags = (
            (8 if wr.flags & SIGNALED else 0)
            | (2 if wr.flags & SOLICITED else 0)
            | (0x80 if wr.flags & FENCE else 0x20 if self.small_fence else 0)
        )
        # immediate data are as the program gave them, a key to invalidate is big-endian
        extra = struct.pack(">I" if wr.opcode == SEND_WITH_INV else "<I", wr.extra) if wr.opcode in EXTRA else bytes(4)
        operation = modifier << 24 | (self.posted & 0xFFFF) << 8 | (OPCODES[wr.opcode] if opcode is None else opcode)
        return (
            struct.pack(">II", operation, self.qpn << 8 | (16 + len(body)) // 16)
            + bytes([0x77, 0, 0, flags])
            + extra
            + body
        )

    def post(self, wr: Send, **other: int) -> None:
        request = self.request(wr, **other)
        for i, byte in enumerate(request):
            self.bytes[(self.posted * BLOCK + i) % len(self.bytes)] = byte
        self.posted += blocks(wr)


def blocks(wr: Send) -> int:
    return -(-len(SendQueue(1, 0).request(wr)) // BLOCK)


class RecvQueue:
    def __init__(self, slots: int, stride: int, posted: int = 0) -> None:
        self.bytes = bytearray(Random(slots).randbytes(slots * stride))
        self.slots, self.stride, self.posted = slots, stride, posted

    def post(self, wr: Recv) -> None:
        slot = b"".join(struct.pack(">IIQ", n, key, address) for address, n, key in wr.elements)
        if len(slot) < self.stride:
            slot += struct.pack(">IIQ", 0, 0x100, 0)
        at = self.posted % self.slots * self.stride
        self.bytes[at : at + len(slot)] = slot
        self.posted += 1


def ask(
    rewinder: Rewinder,
    send: SendQueue,
    recv: RecvQueue | None,
    commands: list[str],
    caps: tuple[int, ...] = (1024, 1024, 64, 64, 1024),
):
    paths = [rewinder.directory / f"mlx5-{kind}" for kind in ("sends", "recvs")]
    paths[0].write_bytes(send.bytes)
    if recv:
        paths[1].write_bytes(recv.bytes)
    received = [recv.stride, recv.slots, recv.posted & 0xFFFF] if recv else [0, 0, 0]
    return rewinder.ask(
        [
            "mlx5",
            paths[0],
            paths[1] if recv else "-",
            *caps,
            send.qpn,
            len(send.bytes) // BLOCK,
            send.posted & 0xFFFF,
            *received,
        ],
        commands,
    )


@settings(max_examples=rounds(60, 200), deadline=None)
@given(st.data())
def test_what_was_posted_last_is_found(rewinder: Rewinder, data: st.DataObject) -> None:
    """Requests of one and of many blocks, across the end of the ring, and across the wrap of the 16-bit indices."""
    size = data.draw(st.sampled_from([16, 32, 128, 1024]))
    qpn, small_fence = data.draw(st.integers(0, 2**24 - 1)), data.draw(st.booleans())
    send = SendQueue(
        size,
        qpn,
        data.draw(st.sampled_from([0, 1, size - 1, 65535, 65535 - size // 2]) | st.integers(0, 2**17)),
        small_fence,
    )
    # no elements or inline data of no bytes: the provider leaves these out
    posted = data.draw(
        st.lists(
            sends(
                max_sge=data.draw(st.sampled_from([1, 4, 40])),
                max_inline=data.draw(st.sampled_from([1, 60, 400, 900])),
                shortest=1,
            ),
            max_size=30,
        )
    )
    for request in posted:
        send.post(request)
    most, held = 0, 0
    while most < len(posted) and held + blocks(posted[-1 - most]) <= size:
        held += blocks(posted[-1 - most])
        most += 1
    n = data.draw(st.integers(0, most))
    assert ask(rewinder, send, RecvQueue(1, 16), [last("sends", posted, n)]) == [
        ("0", []),
        ("0", [request.shown() for request in posted[len(posted) - n :]]),
    ]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_receives(rewinder: Rewinder, data: st.DataObject) -> None:
    slots, stride = data.draw(st.sampled_from([1, 4, 64])), data.draw(st.sampled_from([16, 64, 512]))
    recv = RecvQueue(slots, stride, data.draw(st.sampled_from([0, 65535, 65530]) | st.integers(0, 2**17)))
    posted = data.draw(st.lists(recvs(stride // 16, shortest=1), max_size=80))
    for request in posted:
        recv.post(request)
    n = data.draw(st.integers(0, min(len(posted), slots)))
    _, found = ask(rewinder, SendQueue(16, 5), recv, [last("recvs", posted, n)])
    assert found == ("0", [request.shown() for request in posted[len(posted) - n :]])


def write(wr_id: int, data: bytes = b"", opcode: int = RDMA_WRITE) -> Send:
    return Send(
        wr_id,
        opcode,
        INLINE if data else 0,
        0,
        (1 << 40, 7) if opcode in REMOTE else (0, 0),
        (0, 0),
        () if data else ((wr_id, 10, 1),),
        data,
    )


def test_inline_data_that_look_like_a_request_are_refused(rewinder: Rewinder) -> None:
    """The data begin a block, with its index and the queue pair's number, and would end where the real request ends."""
    qpn, posted = 0xABCDEF, 65530
    index, number = ((posted + 4) & 0xFFFF) << 8 | 0x0A, qpn << 8 | 3
    forged, others, earlier = (
        struct.pack(">II", index, number),
        struct.pack(">II", index, number - 256),
        struct.pack(">II", index - 256, number),
    )
    # the request begins at the second block; its fourth block begins with byte 156 of the inline data (control, address
    # and length come first)
    for data, result in (
        (bytes(156) + forged + bytes(40), -errno.EBADMSG),
        (bytes(157) + forged + bytes(39), 0),
        (bytes(156) + others + bytes(40), 0),
        (bytes(156) + earlier + bytes(40), 0),
    ):
        send = SendQueue(64, qpn, posted)
        requests = [write(1), write(2, data)]
        for request in requests:
            send.post(request)
        assert [blocks(request) for request in requests] == [1, 4]
        _, found = ask(rewinder, send, RecvQueue(1, 16), [last("sends", requests, 2)])
        assert found == (str(result), [] if result else [request.shown() for request in requests])


def test_refusals_append_nothing(rewinder: Rewinder) -> None:
    send = SendQueue(16, 9)
    requests = [write(i) for i in range(3)]
    for request in requests:
        send.post(request)
    results = ask(
        rewinder,
        send,
        RecvQueue(4, 16),
        [
            "sends 17 " + "0 " * 17,  # more than there are blocks
            "sends 4 0 0 1 2",  # nothing was posted before the first
            "recvs 5 0 0 0 0 0",
            "psn 1",
            "journal 2 4 0",
            last("sends", requests, 3),
            last("sends", requests, 2),
        ],
    )[1:]
    assert results[:4] == [
        (str(-errno.ERANGE), []),
        (str(-errno.EBADMSG), []),
        (str(-errno.ERANGE), []),
        (f"{-errno.ENOTSUP} 0", []),
    ]
    assert results[4:] == [(str(-errno.ENOSPC), []), ("0", [request.shown() for request in requests[-2:]])]


def test_a_ring_full_of_long_requests(rewinder: Rewinder) -> None:
    send = SendQueue(16, 9, 65530)
    requests = [write(i, bytes(200)) for i in range(9)]
    for request in requests:
        send.post(request)
    assert blocks(requests[0]) == 4
    results = ask(rewinder, send, RecvQueue(1, 16), [last("sends", requests, 4), last("sends", requests, 5)])[1:]
    assert results == [("0", [request.shown() for request in requests[-4:]]), (str(-errno.ERANGE), [])]


@pytest.mark.parametrize(("opcode", "modifier"), [(0x25, 0), (0x00, 0), (0x0E, 0), (0x14, 8), (0x08, 1)])
def test_requests_that_cannot_be_replayed(rewinder: Rewinder, opcode: int, modifier: int) -> None:
    """Memory windows and local invalidations (UMR), no-operations, segmentation, masked atomics, modified
    operations."""
    send = SendQueue(16, 9)
    send.post(write(1))
    send.post(write(2), opcode=opcode, modifier=modifier)
    assert ask(rewinder, send, RecvQueue(1, 16), ["sends 2 1 2"])[1] == (str(-errno.EOPNOTSUPP), [])


@pytest.mark.parametrize("segment", [struct.pack(">I", 0x80000000 | 13), struct.pack(">I", 0xFFFFFFFF)])
def test_inline_data_longer_than_the_request(rewinder: Rewinder, segment: bytes) -> None:
    send = SendQueue(16, 9)
    send.post(write(1, opcode=SEND))
    send.bytes[16:20] = segment
    assert ask(rewinder, send, RecvQueue(1, 16), ["sends 1 1"])[1] == (str(-errno.EBADMSG), [])


def test_inline_data_beside_an_element(rewinder: Rewinder) -> None:
    send = SendQueue(16, 9)
    send.post(Send(1, SEND, 0, 0, (0, 0), (0, 0), ((1, 2, 3), (4, 5, 6)), b""))
    send.bytes[32:36] = struct.pack(">I", 0x80000000 | 3)
    assert ask(rewinder, send, RecvQueue(1, 16), ["sends 1 1"])[1] == (str(-errno.EBADMSG), [])


def test_what_is_not_attached(rewinder: Rewinder) -> None:
    recv = RecvQueue(4, 16)
    assert ask(rewinder, SendQueue(16, 9), recv, []) == [("0", [])]
    assert ask(rewinder, SendQueue(24, 9), recv, []) == [("none", [])]  # not a power of two
    assert ask(rewinder, SendQueue(16, 9), RecvQueue(3, 16), []) == [("none", [])]
    assert ask(rewinder, SendQueue(16, 9), RecvQueue(1, 8), []) == [("none", [])]
    assert ask(rewinder, SendQueue(16, 9), None, ["recvs 0"])[1] == (str(-errno.ENOTSUP), [])


def test_signatures_are_not_attached(rewinder: Rewinder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX5_QP_SIGNATURE", "1")
    assert ask(rewinder, SendQueue(16, 9), RecvQueue(4, 16), []) == [("none", [])]


def test_every_operation_is_made() -> None:
    assert set(OPCODES) >= ATOMICS | REMOTE | EXTRA | {SEND}
