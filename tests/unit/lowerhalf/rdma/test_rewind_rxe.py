"""lowerhalf/rdma/requests/rewind_rxe.c on rings written here, after <rdma/rdma_user_rxe.h>, offset by offset. The test
with a real queue pair is tests/rdma/test_rewind.py."""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from rewinder import Rewinder, last
from rounds import rounds
from work_requests import ATOMICS, BIND_MW, INLINE, LOCAL_INV, RDMA_WRITE, SEND, Recv, Send, recvs, sends

HEADER, SEND_HEAD, RECV_HEAD = 384, 208, 40
ORDINARY = ["..x.r...s"]


@dataclass
class Caps:
    send_wr: int = 15
    recv_wr: int = 15
    send_sge: int = 4
    recv_sge: int = 4
    inline: int = 64

    def __iter__(self):
        return iter((self.send_wr, self.recv_wr, self.send_sge, self.recv_sge, self.inline))


def rounded(n: int) -> int:
    return 1 << (n - 1).bit_length()


@dataclass
class Ring:
    """A ring of the kernel's. junk: what the kernel may leave in its own fields."""

    slots: int
    size: int
    start: int = 0
    junk: Random = field(default_factory=lambda: Random(0))

    def __post_init__(self) -> None:
        self.start %= self.slots
        self.bytes = bytearray(HEADER + self.slots * self.size)
        self.producer = self.start
        struct.pack_into("<II", self.bytes, 0, self.size.bit_length() - 1, self.slots - 1)

    def u32(self) -> int:
        return self.junk.getrandbits(32)

    def post(self, slot: bytes) -> None:
        at = HEADER + self.producer * self.size
        self.bytes[at : at + len(slot)] = slot
        self.producer = (self.producer + 1) % self.slots

    def post_send(self, wr: Send, first_psn: int = 0, last_psn: int = 0, mask: int = 1, status: int = 0) -> None:
        if wr.opcode in ATOMICS:
            operation = struct.pack("<QQQII", wr.remote[0], *wr.operands, wr.remote[1], 0)
        else:
            operation = struct.pack("<QII", *wr.remote, 0)
        length = wr.shown()["length"]
        slot = struct.pack("<QIIII", wr.wr_id, self.u32(), wr.opcode, wr.flags, wr.extra) + operation
        slot = slot.ljust(144, b"\xaa") + struct.pack(
            "<IIQIIIIII", status, self.u32(), self.u32(), mask, first_psn, last_psn, self.u32(), self.u32(), self.u32()
        )
        # length, resid, cur_sge, num_sge, sge_offset
        slot += struct.pack(
            "<IIIIII",
            length & 0xFFFFFFFF,
            self.u32(),
            self.u32(),
            1 if wr.flags & INLINE else len(wr.elements),
            self.u32(),
            0,
        )
        assert len(slot) == SEND_HEAD
        self.post(
            slot
            + (wr.data if wr.flags & INLINE else b"".join(struct.pack("<QII", *element) for element in wr.elements))
        )

    def post_recv(self, wr: Recv) -> None:
        slot = struct.pack("<QII", wr.wr_id, self.u32(), 0)
        slot += struct.pack("<IIIIII", self.u32(), self.u32(), self.u32(), len(wr.elements), self.u32(), 0)
        assert len(slot) == RECV_HEAD
        self.post(slot + b"".join(struct.pack("<QII", *element) for element in wr.elements))

    def image(self) -> bytes:
        """The ring after an error: the consumer is at an arbitrary place."""
        struct.pack_into("<I", self.bytes, 128, self.producer)
        struct.pack_into("<I", self.bytes, 256, self.junk.randrange(self.slots))
        return bytes(self.bytes).ljust(-(-len(self.bytes) // 4096) * 4096, b"\0")


def rings(caps: Caps, start: int = 0) -> tuple[Ring, Ring]:
    send = Ring(rounded(caps.send_wr + 1), rounded(SEND_HEAD + max(caps.inline, 16 * caps.send_sge)), start)
    recv = Ring(rounded(caps.recv_wr + 1), rounded(max(64, RECV_HEAD + 16 * caps.recv_sge)), start)
    return send, recv


def ask(
    rewinder: Rewinder, caps: Caps, send: Ring, recv: Ring | None, commands: list[str], objects: list[str] = ORDINARY
):
    paths = [rewinder.directory / "infiniband" / f"uverbs-{kind}" for kind in ("sends", "recvs")]
    paths[0].write_bytes(send.image())
    if recv:
        paths[1].write_bytes(recv.image())
    return rewinder.ask(["rxe", paths[0], paths[1] if recv else "-", *caps, *objects], commands)


@settings(max_examples=rounds(40, 120), deadline=None)
@given(st.data())
def test_what_was_posted_last_is_found(rewinder: Rewinder, data: st.DataObject) -> None:
    caps = Caps(
        *(data.draw(st.integers(1, 20)) for _ in range(2)),
        *(data.draw(st.integers(1, 6)) for _ in range(2)),
        data.draw(st.integers(0, 200)),
    )
    send, recv = rings(caps, data.draw(st.integers(0, 64)))
    room = max(caps.send_sge * 16, caps.inline)  # the driver raises both to the size that fits
    posted = data.draw(st.lists(sends(caps.send_sge, min(room, caps.inline)), max_size=40))
    received = data.draw(st.lists(recvs(caps.recv_sge), max_size=40))
    for request in posted:
        send.post_send(request)
    for request in received:
        recv.post_recv(request)
    n, m = (
        data.draw(st.integers(0, min(len(posted), caps.send_wr))),
        data.draw(st.integers(0, min(len(received), caps.recv_wr))),
    )
    attached, found, found_recvs = ask(
        rewinder, caps, send, recv, [last("sends", posted, n), last("recvs", received, m)]
    )
    assert attached == ("0", [])
    assert found == ("0", [request.shown() for request in posted[len(posted) - n :]])
    assert found_recvs == ("0", [request.shown() for request in received[len(received) - m :]])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([RDMA_WRITE, SEND, LOCAL_INV]), st.integers(1, 9)), max_size=40),
    st.integers(0, 2**24 - 1),
    st.integers(0, 64),
    st.data(),
)
def test_the_first_packet(
    rewinder: Rewinder, requests: list[tuple[int, int]], psn: int, start: int, data: st.DataObject
) -> None:
    """The number follows the last packet of the request that completed before. If there is none, there is no number.
    Outstanding requests may never have been started."""
    caps = Caps()
    send, recv = rings(caps, start)
    n = data.draw(st.integers(0, min(len(requests), caps.send_wr)))
    wanted = None
    for i, (opcode, packets) in enumerate(requests):
        request = Send(i, opcode, 0, 0, (0, 0), (0, 0), (), b"")
        if i >= len(requests) - n:
            send.post_send(request, first_psn=12345, last_psn=12345, mask=0)
        elif opcode == LOCAL_INV:
            send.post_send(request, first_psn=54321, last_psn=54321)
        else:
            send.post_send(request, psn, (psn + packets - 1) % 2**24)
            psn = wanted = (psn + packets) % 2**24
    _, answer = ask(rewinder, caps, send, recv, [f"psn {n}"])
    # the request that completed last may have been overwritten by outstanding ones, or may be followed by as many local
    # requests as there are slots
    held = [opcode for opcode, _ in requests[: len(requests) - n]][-(send.slots - n) :]
    if any(opcode != LOCAL_INV for opcode in held):
        assert answer == (f"0 {wanted}", [])
    elif len(held) < send.slots - n:
        assert answer == (f"{-errno.ENODATA} 0", [])
    else:
        assert answer == (f"{-errno.ENOTSUP} 0", [])


def test_the_first_packet_when_the_ring_is_full(rewinder: Rewinder) -> None:
    """The one slot that is never in use holds the request that completed last. Packet numbers have 24 bits."""
    caps = Caps()
    send, recv = rings(caps)
    send.post_send(plain(1)[0], 0xFFFFF0, 0xFFFFFF)
    for request in plain(caps.send_wr):
        send.post_send(request)
    assert ask(rewinder, caps, send, recv, [f"psn {caps.send_wr}"])[1] == ("0 0", [])
    # one more request is posted: that slot no longer exists, unless it was remembered
    more = f"psn {caps.send_wr + 1}"
    assert ask(rewinder, caps, send, recv, [more, "fenced", more])[1:] == [
        (f"{-errno.ENOTSUP} 0", []),
        ("0", []),
        ("0 0", []),
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0, 5, 12]), max_size=30), st.integers(0, 64))
def test_how_many_failed(rewinder: Rewinder, statuses: list[int], start: int) -> None:
    """The failed requests at the end, after the last one that succeeded."""
    send, recv = rings(Caps(), start)
    for request, status in zip(plain(len(statuses)), statuses, strict=True):
        send.post_send(request, status=status)
    held = statuses[-send.slots :]
    failed = next((i for i, status in enumerate(reversed(held)) if status == 0), len(held))
    assert ask(rewinder, Caps(), send, recv, ["failed"])[1] == (str(failed), [])


def plain(n: int) -> list[Send]:
    return [Send(100 + i, RDMA_WRITE, 0, 0, (1 << 40, 7), (0, 0), ((i, 10, 1),), b"") for i in range(n)]


def test_refusals_append_nothing(rewinder: Rewinder) -> None:
    caps = Caps()
    send, recv = rings(caps)
    posted = plain(12)
    for request in posted:
        send.post_send(request)
    commands = [
        "sends 17 " + " ".join("0" for _ in range(17)),
        "sends 3 109 110 112",  # the last completion is of another request
        "sends 3 108 109 110",
        "journal 4 4 64",
        last("sends", posted, 5),
        last("sends", posted, 4),
    ]
    results = ask(rewinder, caps, send, recv, commands)
    refused = [errno.ERANGE, errno.EBADMSG, errno.EBADMSG, errno.ENOSPC]
    assert results == [
        ("0", []),
        *((str(-e), []) for e in refused),
        ("0", [request.shown() for request in posted[-4:]]),
    ]


def test_requests_that_cannot_be_replayed(rewinder: Rewinder) -> None:
    for opcode in (LOCAL_INV, BIND_MW, 14, 2**31):
        send, recv = rings(Caps())
        posted = [*plain(2), Send(5, opcode, 0, 0, (0, 0), (0, 0), (), b"")]
        for request in posted:
            send.post_send(request)
        assert ask(rewinder, Caps(), send, recv, [last("sends", posted, 3)])[1] == (str(-errno.EOPNOTSUPP), [])


def test_a_slot_with_more_than_fits(rewinder: Rewinder) -> None:
    caps = Caps()
    send, recv = rings(caps)
    send.post_send(plain(1)[0])
    struct.pack_into("<I", send.bytes, HEADER + 196, 2**31)  # num_sge
    recv.post_recv(Recv(7, ()))
    struct.pack_into("<I", recv.bytes, HEADER + 28, 2**31)
    assert ask(rewinder, caps, send, recv, ["sends 1 100", "recvs 1 7"])[1:] == [(str(-errno.EBADMSG), [])] * 2
    struct.pack_into("<II", send.bytes, HEADER + 12, SEND, INLINE)
    struct.pack_into("<I", send.bytes, HEADER + 184, send.size - SEND_HEAD + 1)  # length
    assert ask(rewinder, caps, send, recv, ["journal 4 4 4096", "sends 1 100"])[1] == (str(-errno.EBADMSG), [])


def test_only_rings_are_taken_for_rings(rewinder: Rewinder) -> None:
    caps = Caps(send_wr=31)
    send, recv = rings(caps)
    refused, taken = str(-errno.ENOTSUP), "0"

    def attach(objects: list[str], recv: Ring | None = recv, caps: Caps = caps) -> list[str]:
        return [result for result, _ in ask(rewinder, caps, send, recv, [], objects)]

    assert attach(["r.s"]) == [taken]
    assert attach(["s.r"]) == [taken]  # they differ in size, so their order isn't needed
    assert attach(["xxx", "..", "r..", "..s"]) == [refused] * 4
    # the first one shows the layout of pointers
    assert attach(["r.s", "r.s", "s.r", "x.s", "...", "u.u"]) == [taken, taken, *[refused] * 4]
    assert attach(["..s", "s.."], recv=None) == [taken, refused]
    assert attach(["r.s"], caps=Caps(send_wr=32)) == [refused]
    assert attach(["r.s"], caps=Caps(send_wr=31, inline=400)) == [refused]
    assert attach(["r.s"], caps=Caps(send_wr=31, recv_sge=40)) == [refused]


def test_rings_of_one_shape_come_in_the_order_of_the_provider(rewinder: Rewinder) -> None:
    caps = Caps(recv_sge=16)
    send, recv = rings(caps)
    assert (send.slots, send.size) == (recv.slots, recv.size)
    send.post_send(plain(1)[0])
    recv.post_recv(Recv(7, ((1, 2, 3),)))
    _, sent, received = ask(rewinder, caps, send, recv, ["sends 1 100", "recvs 1 7"], ["r.s"])
    assert sent == ("0", [plain(1)[0].shown()]) and received == ("0", [Recv(7, ((1, 2, 3),)).shown()])
    _, sent, received = ask(rewinder, caps, send, recv, ["sends 1 100", "recvs 1 7"], ["s.r"])
    # a provider with the opposite order would be noticed
    assert sent == received == (str(-errno.EBADMSG), [])


def test_receives_of_a_shared_queue(rewinder: Rewinder) -> None:
    send, _ = rings(Caps())
    assert ask(rewinder, Caps(), send, None, ["recvs 0"])[1] == (str(-errno.ENOTSUP), [])
