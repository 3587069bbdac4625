"""A seeded random mix of MPI traffic whose result does not depend on timing.

    mpirun -n N python stress.py SEED STEPS [--pause SECONDS] [--blocking]

Every rank derives the same schedule from the seed. Each step is one operation on one communicator, and steps may leave
operations pending that later steps complete. The data that a rank receives go into its digest. Rank 0 prints "step K"
now and then and, as its last line, "digest HEX" of all ranks' digests.

It cannot deadlock or depend on timing, for these reasons. Ranks do the steps in the same order. A step blocks only on
steps that all its members have reached or will reach without this rank. Tags are unique per step, so wildcards match
only within a step, and the messages that they match are sorted before they go into the digest.

--blocking: no nonblocking collectives and no wrong calls, which two-phase commit doesn't support; the digest is the
same.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI
from steps import parser, progress, report, run

WORLD = MPI.COMM_WORLD
ME, SIZE = WORLD.rank, WORLD.size
COMMS_MAX = 8
BSEND_BYTES = 1 << 22


def compose(a: MPI.buffer, b: MPI.buffer, _: MPI.Datatype) -> None:
    """Not commutative: composition of x -> p x + q (mod a prime), first a, then b; pairs of int64."""
    x = np.frombuffer(a, dtype="i8").reshape(-1, 2)
    y = np.frombuffer(b, dtype="i8").reshape(-1, 2)
    p, q = x[:, 0] * y[:, 0] % 65521, (x[:, 1] * y[:, 0] + y[:, 1]) % 65521
    y[:, 0], y[:, 1] = p, q


def smaller_key(a: MPI.buffer, b: MPI.buffer, _: MPI.Datatype) -> None:
    """Commutative."""
    x, y = np.frombuffer(a, dtype="i8"), np.frombuffer(b, dtype="i8")
    y[:] = np.where(x * 7919 % 10007 < y * 7919 % 10007, x, y)


@dataclass(eq=False)
class Comm:
    """A communicator that all ranks know; only members have ``handle``. ``members``: world ranks in rank order."""

    handle: MPI.Comm | None
    members: list[int]
    pending: int = 0  # operations in progress: until they end, it isn't freed

    @property
    def size(self) -> int:
        return len(self.members)


@dataclass(eq=False)
class Deferred:
    """An action for a later step, and the ranks that take part in it."""

    comm: Comm
    work: Callable[[], None]


@dataclass(eq=False)
class Stress:
    """The state of one rank."""

    seed: int
    blocking: bool = False
    digest: hashlib._Hash = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    comms: list[Comm] = field(default_factory=lambda: [Comm(WORLD, list(range(SIZE)))])
    later: dict[int, list[Deferred]] = field(default_factory=dict)
    step: int = 0

    def __post_init__(self) -> None:
        self.compose = MPI.Op.Create(compose, commute=False)
        self.smaller = MPI.Op.Create(smaller_key, commute=True)
        pieces = MPI.INT64_T.Create_vector(8, 3, 5).Create_resized(0, 8 * 8 * 5)
        self.vector = pieces.Commit()
        self.indexed = MPI.INT64_T.Create_indexed([1, 4], [9, 3]).Create_resized(0, 80).Commit()
        self.pair = MPI.INT64_T.Create_contiguous(2).Commit()
        MPI.Attach_buffer(bytearray(BSEND_BYTES))

    # ---- data

    def note(self, *values: object) -> None:
        """Add to the digest."""
        for value in values:
            self.digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())

    def data(self, n: int, *salt: int) -> np.ndarray:
        """n values that depend only on this step and the salt."""
        return np.random.default_rng([self.seed, self.step, *salt]).integers(0, 65521, n)

    def tag(self, k: int = 0) -> int:
        return self.step * 16 + k

    def defer(self, step: int, comm: Comm, work: Callable[[], None]) -> None:
        comm.pending += 1
        self.later.setdefault(step, []).append(Deferred(comm, work))

    def run(self, steps: int, pause: float) -> None:
        """All steps."""
        kinds = [
            *[self.collective] * 6, *[self.ring] * 3, *[self.exchange] * 4, *[self.wildcard] * 4, *[self.probes] * 3,
            *[self.deferred] * 8,
            *[self.make] * 3, *[self.free] * 2, self.idle, self.chain, self.crossed, *[self.between] * 3,
            *[self.neighbours] * 2, *[self.duplicate] * 2, *[self.wrong] * 2,
        ]  # fmt: skip
        for self.step in range(steps):
            rng = random.Random(self.seed * 1_000_003 + self.step)
            for d in self.later.pop(self.step, ()):
                d.comm.pending -= 1
                d.work()
            rng.choice(kinds)(rng, rng.choice(self.comms))
            if rng.random() < 0.3 and pause:
                time.sleep(pause * random.random() * 2)  # timing only
            progress(self.step)
        for step in sorted(self.later):
            self.step = step
            for d in self.later[step]:
                d.work()
        MPI.Detach_buffer()
        report(self.digest.hexdigest())

    # ---- collectives

    def collective(self, rng: random.Random, comm: Comm) -> None:
        kind, n, root = rng.randrange(13), rng.choice([1, 3, 40, 3000]), rng.randrange(comm.size)
        if (c := comm.handle) is None:
            return
        r, p = c.rank, c.size
        mine = self.data(n, r)
        counts = [(i * 5 + n) % 7 for i in range(p)]
        if kind == 0:
            c.Barrier()
        elif kind == 1:
            got = mine.copy()
            c.Bcast(got, root=root)
            self.note(got)
        elif kind == 2:
            got = np.empty_like(mine)
            c.Allreduce(mine, got, op=[MPI.SUM, MPI.MAX, self.smaller][root % 3])
            self.note(got)
        elif kind == 3:
            pairs, got = self.data(2 * n, r), np.empty(2 * n, dtype="i8")
            c.Scan([pairs, n, self.pair], [got, n, self.pair], op=self.compose)
            self.note(got)
        elif kind == 4:
            got = np.empty(sum(counts), dtype="i8")
            c.Gatherv(self.data(counts[r], r), [got, counts] if r == root else None, root=root)
            self.note(got if r == root else None)
        elif kind == 5:
            got = np.empty(counts[r], dtype="i8")
            c.Scatterv([self.data(sum(counts)), counts] if r == root else None, got, root=root)
            self.note(got)
        elif kind == 6:
            got = np.empty(n * p, dtype="i8")
            c.Alltoall(self.data(n * p, r), got)
            self.note(got)
        elif kind == 7:
            out, into = [(r + i) % 4 for i in range(p)], [(r + i) % 4 for i in range(p)]
            got = np.empty(sum(into), dtype="i8")
            c.Alltoallv([self.data(sum(out), r), out], [got, into])
            self.note(got)
        elif kind == 8:
            got = np.zeros(40 * p, dtype="i8")
            places = [i * 320 for i in range(p)]
            c.Alltoallw(
                [self.data(40 * p, r), [1] * p, places, [self.vector] * p], [got, [1] * p, places, [self.vector] * p]
            )
            self.note(got)
        elif kind == 9:
            got = np.empty(counts[r], dtype="i8")
            c.Reduce_scatter(self.data(sum(counts), r), got, counts, op=MPI.MIN)
            self.note(got)
        elif kind == 10:
            self.note(c.allgather((r, int(mine[0]))))
        elif kind == 11:
            got = np.empty_like(mine)
            c.Reduce(mine, got if r == root else None, op=MPI.BXOR, root=root)
            self.note(got if r == root else None)
        else:
            got = np.zeros_like(mine)
            c.Exscan(mine, got, op=MPI.SUM)
            self.note(got if r else None)

    # ---- point-to-point within a step

    def ring(self, rng: random.Random, comm: Comm) -> None:
        n, shift, replace = rng.choice([1, 100, 20000]), rng.randrange(comm.size), rng.random() < 0.4
        if (c := comm.handle) is None:
            return
        to, source = (c.rank + shift) % c.size, (c.rank - shift) % c.size
        if replace:
            got = self.data(80, c.rank)
            c.Sendrecv_replace([got, 2, self.vector], dest=to, sendtag=self.tag(), source=source, recvtag=self.tag())
        else:
            got = np.empty(n, dtype="i8")
            c.Sendrecv(
                self.data(n, c.rank), dest=to, sendtag=self.tag(), recvbuf=got, source=source, recvtag=self.tag()
            )
        self.note(got)

    def exchange(self, rng: random.Random, comm: Comm) -> None:
        """All ranks send to all, several messages per pair, completed in different ways."""
        how, n, first, depth = rng.randrange(6), rng.choice([40, 400, 16000]), rng.random() < 0.5, rng.randrange(1, 4)
        if (c := comm.handle) is None:
            return
        p = c.size
        got = np.zeros((p, depth, n), dtype="i8")
        sends: list[MPI.Request] = []
        receives: list[MPI.Request] = []

        def send() -> None:
            for d in range(depth):
                for i in range(p):
                    start = [c.Isend, c.Issend][(d + i + how) % 2]
                    values = self.data(n, c.rank, i, d)
                    if d == 1:
                        sends.append(start([values, n // 40, self.vector], dest=i, tag=self.tag()))
                    else:
                        sends.append(start(values, dest=i, tag=self.tag()))

        if first:
            send()
        for d in range(depth):
            for i in range(p):
                where = got[i, d]
                receives.append(c.Irecv([where, n // 40, self.vector] if d == 1 else where, source=i, tag=self.tag()))
        if not first:
            send()
        if how == 0:
            MPI.Request.Waitall(receives + sends)
        elif how == 1:
            for _ in range(len(receives)):
                MPI.Request.Waitany(receives)
        elif how == 2:
            while MPI.Request.Waitsome(receives) is not None:
                pass
        elif how == 3:
            while not MPI.Request.Testall(receives + sends):
                pass
        elif how == 4:
            for request in reversed(receives):
                while not request.Test():
                    time.sleep(0.0002)
        else:
            for request in receives + sends:
                request.Wait()
        MPI.Request.Waitall(sends)
        self.note(got)

    def wildcard(self, rng: random.Random, comm: Comm) -> None:
        """All ranks send to one in all modes, and it receives from any source. Its own message comes last."""
        root, n, mode, wait = rng.randrange(comm.size), rng.choice([1, 50, 12000]), rng.randrange(4), rng.random() < 0.3
        if (c := comm.handle) is None or comm.size == 1:
            return
        if c.rank != root:
            values = self.data(n, c.rank)
            for k in range(2):
                m = (mode + c.rank + k) % 4
                if m == 0:
                    c.Send(values, dest=root, tag=self.tag(k))
                elif m == 1:
                    c.Ssend(values, dest=root, tag=self.tag(k))
                elif m == 2:
                    c.Bsend(values, dest=root, tag=self.tag(k))
                else:
                    c.Isend(values, dest=root, tag=self.tag(k)).Wait()
            return
        if wait:
            time.sleep(0.01)
        found = []
        for k in range(2):
            for _ in range(c.size - 1):
                status, got = MPI.Status(), np.empty(n, dtype="i8")
                if mode % 2:
                    c.Recv(got, source=MPI.ANY_SOURCE, tag=self.tag(k), status=status)
                else:
                    c.Irecv(got, source=MPI.ANY_SOURCE, tag=self.tag(k)).Wait(status)
                assert status.Get_count(MPI.INT64_T) == n
                found.append((k, status.source, got.tobytes()))
        self.note(*sorted(found))

    def probes(self, rng: random.Random, comm: Comm) -> None:
        """The receiver finds the sizes by probing."""
        root, kind, size = rng.randrange(comm.size), rng.randrange(5), rng.choice([3, 7000])
        if (c := comm.handle) is None or comm.size == 1:
            return
        if c.rank != root:
            values = self.data(size + c.rank, c.rank)
            (c.Ssend if (c.rank + kind) % 2 else c.Send)(values, dest=root, tag=self.tag())
            return
        found, status = [], MPI.Status()
        for i in range(c.size - 1):
            source = MPI.ANY_SOURCE if kind != 4 else [s for s in range(c.size) if s != root][i]
            message = None
            if kind in (0, 4):
                c.Probe(source, self.tag(), status)
            elif kind == 1:
                while not c.Iprobe(source, self.tag(), status):
                    pass
            elif kind == 2:
                message = c.Mprobe(source, self.tag(), status)
            else:
                while (message := c.Improbe(source, self.tag(), status)) is None:
                    time.sleep(0.0002)
            got = np.empty(status.Get_count(MPI.INT64_T), dtype="i8")
            if message is None:
                c.Recv(got, source=status.source, tag=self.tag())
            elif i % 2:
                time.sleep(0.003)  # a checkpoint may come between probe and receive
                message.Recv(got)
            else:
                message.Irecv(got).Wait()
            found.append((status.source, got.tobytes()))
        self.note(*sorted(found))

    def chain(self, _: random.Random, comm: Comm) -> None:
        """Each rank waits for the next one, and the last one comes late; then in the opposite direction."""
        if (c := comm.handle) is None:
            return
        token = np.zeros(5, dtype="i8")
        if c.rank == c.size - 1:
            time.sleep(0.02)
            token[:] = self.data(5)
        else:
            c.Recv(token, source=c.rank + 1, tag=self.tag())
        if c.rank:
            token += c.rank
            c.Send(token, dest=c.rank - 1, tag=self.tag())
        self.note(token)

    def crossed(self, rng: random.Random, comm: Comm) -> None:
        """Half of the ranks first pass a collective of their own; the other half waits for messages from them."""
        other = rng.choice(self.comms)
        if other.handle is not None:
            other.handle.Barrier()
        if comm.handle is not None:
            got = np.empty(1, dtype="i8")
            peer = comm.size - 1 - comm.handle.rank
            comm.handle.Sendrecv(
                self.data(1, comm.handle.rank),
                dest=peer,
                sendtag=self.tag(),
                recvbuf=got,
                source=peer,
                recvtag=self.tag(),
            )
            self.note(got)

    # ---- over several steps

    def deferred(self, rng: random.Random, comm: Comm) -> None:
        """One message whose start, matching receive and completion lie steps apart."""
        source, to = rng.randrange(comm.size), rng.randrange(comm.size)
        mode, derived, a, b = rng.randrange(6), rng.random() < 0.4, rng.choice([0, 1, 3, 12]), rng.choice([0, 1, 5, 15])
        n = rng.choice([10, 500, 30000])
        tag, step, c = self.tag(), self.step, comm.handle
        state: dict[str, MPI.Request] = {}
        values = self.data(n, source)
        got = np.zeros(n, dtype="i8")
        one = [values, n // 10, self.indexed] if derived else values
        into = [got, n // 10, self.indexed] if derived else got

        def send() -> None:
            if c is not None and c.rank == source:
                start = [c.Isend, c.Issend, c.Ibsend, c.Isend][mode % 4]
                state["send"] = start(one, dest=to, tag=tag)

        def receive() -> None:
            if c is not None and c.rank == to:
                state["recv"] = c.Irecv(into, source=MPI.ANY_SOURCE if mode > 2 else source, tag=tag)

        def finish() -> None:
            if "send" in state and mode != 5:
                state["send"].Wait()
            if "recv" in state:
                status = MPI.Status()
                state["recv"].Wait(status)
                self.note(step, status.source, status.tag, got)
            if "send" in state:
                state["send"].Wait()

        first, second = (send, receive) if rng.random() < 0.5 else (receive, send)
        first()
        if a:
            self.defer(step + a, comm, second)
        else:
            second()
        if a + b:
            self.defer(step + a + b, comm, finish)
        else:
            finish()

    def make(self, rng: random.Random, comm: Comm) -> None:
        if len(self.comms) >= COMMS_MAX:
            return
        kind, order = rng.randrange(4), rng.sample(range(comm.size), comm.size)
        colours = [rng.randrange(2) for _ in range(comm.size)]
        some = [r for r in order if colours[r]] or [0]
        c = comm.handle
        if kind == 0:
            self.comms.append(Comm(c.Dup() if c else None, comm.members))
        elif kind == 1:  # split: both halves are kept, in permuted order
            mine = c.Split(colours[c.rank], order.index(c.rank)) if c else None
            for colour in (0, 1):
                members = [comm.members[r] for r in order if colours[r] == colour]
                if members:
                    self.comms.append(Comm(mine if ME in members else None, members))
        elif kind == 2:
            made = MPI.COMM_NULL
            if c and c.rank in some:
                group = c.Get_group().Incl(some)
                made = c.Create_group(group, tag=self.step % 100)
                group.Free()
            self.comms.append(Comm(made if made != MPI.COMM_NULL else None, [comm.members[r] for r in some]))
        else:
            made = c.Create(c.Get_group().Incl(some)) if c else MPI.COMM_NULL
            self.comms.append(Comm(made if made != MPI.COMM_NULL else None, [comm.members[r] for r in some]))
        new = self.comms[-1]
        if new.handle is not None:
            assert new.handle.size == new.size and new.members[new.handle.rank] == ME
            new.handle.Set_name(f"made-{self.step}")

    def begin(
        self, nonblocking: Callable[..., MPI.Request], blocking: Callable[..., None], *buffers: np.ndarray
    ) -> MPI.Request:
        """Start a collective; returns the request to wait for."""
        if not self.blocking:
            return nonblocking(*buffers)
        blocking(*buffers)
        return MPI.REQUEST_NULL

    def duplicate(self, rng: random.Random, comm: Comm) -> None:
        """A nonblocking duplicate that is used some steps later."""
        steps, c = rng.choice([1, 2, 10]), comm.handle
        new, request = (None, None) if c is None else (c.Dup(), None) if self.blocking else c.Idup()

        def finish() -> None:
            if request is not None:
                request.Wait()
            self.comms.append(Comm(new, comm.members))

        if len(self.comms) < COMMS_MAX:
            self.defer(self.step + steps, comm, finish)
        else:
            finish()

    def between(self, rng: random.Random, comm: Comm) -> None:
        """An inter-communicator between two parts of a communicator, with traffic now and some steps later. It may also
        be merged."""
        if comm.size == 1:
            return
        order, cut, keep, steps = (
            rng.sample(range(comm.size), comm.size),
            rng.randrange(1, comm.size),
            rng.random() < 0.3,
            rng.choice([1, 4, 12]),
        )
        halves = order[:cut], order[cut:]
        leaders = [rng.choice(half) for half in halves]
        if keep and len(self.comms) < COMMS_MAX:
            kept = Comm(None, [comm.members[r] for r in order])
            self.comms.append(kept)
        else:
            kept = None
        c, tag = comm.handle, self.tag()
        if c is None:
            self.defer(self.step + steps, comm, lambda: None)
            return
        side = c.rank in halves[1]
        mine, theirs = halves[side], halves[not side]
        local = c.Split(int(side), mine.index(c.rank))
        inter = local.Create_intercomm(mine.index(leaders[side]), c, leaders[not side], tag=self.step % 100)
        local.Free()
        assert (inter.size, inter.remote_size, inter.rank) == (len(mine), len(theirs), mine.index(c.rank))
        me, n = inter.rank, len(theirs)
        if kept is not None:
            kept.handle = inter.Merge(high=side)
            assert kept.handle.rank == order.index(c.rank)
        sources = [i for i in range(n) if i % len(mine) == me]
        got = np.zeros((len(sources), 50), dtype="i8")
        pending = [inter.Irecv(got[i], source=source, tag=tag) for i, source in enumerate(sources[::2])]
        pending.append([inter.Isend, inter.Issend][cut % 2](self.data(50, c.rank), dest=me % n, tag=tag))

        def finish() -> None:
            for i, source in enumerate(sources[1::2]):
                inter.Recv(got[len(sources[::2]) + i], source=source, tag=tag)
            MPI.Request.Waitall(pending)
            total, all_ = np.zeros(1, dtype="i8"), np.zeros(n, dtype="i8")
            request = self.begin(inter.Iallgather, inter.Allgather, np.array([me + 7]), all_)
            inter.Allreduce(np.array([c.rank]), total)
            request.Wait()
            self.note(got, total, all_)
            inter.Free()

        self.defer(self.step + steps, comm, finish)

    def neighbours(self, rng: random.Random, comm: Comm) -> None:
        """A grid or a random graph, with collectives among neighbours now and some steps later."""
        kind, steps, p = rng.randrange(2), rng.choice([1, 3, 9]), comm.size
        edges = [(rng.randrange(p), rng.randrange(p)) for _ in range(2 * p)]
        if (c := comm.handle) is None:
            self.defer(self.step + steps, comm, lambda: None)
            return
        if kind == 0:
            topology: MPI.Cartcomm | MPI.Distgraphcomm = c.Create_cart(MPI.Compute_dims(p, 2), periods=[True, False])
        else:
            sources, targets = [a for a, b in edges if b == c.rank], [b for a, b in edges if a == c.rank]
            topology = c.Create_dist_graph_adjacent(
                sources, targets, list(range(len(sources))), list(range(len(targets)))
            )
        ins, outs = topology.indegree, topology.outdegree
        got, later, values = np.full(3 * ins, -1, dtype="i8"), np.full(ins, -1, dtype="i8"), self.data(1, c.rank)
        topology.Neighbor_alltoall(self.data(3 * outs, c.rank), got)
        request = self.begin(topology.Ineighbor_allgather, topology.Neighbor_allgather, values, later)

        def finish() -> None:
            request.Wait()
            again = np.full(ins, -1, dtype="i8")
            topology.Neighbor_allgather(values, again)
            self.note(got, later, again, topology.inoutedges if kind else topology.Get_topo())
            topology.Free()

        self.defer(self.step + steps, comm, finish)

    def free(self, rng: random.Random, _: Comm) -> None:
        free = [x for x in self.comms[1:] if not x.pending]
        if free:
            gone = rng.choice(free)
            self.comms.remove(gone)
            if gone.handle is not None:
                gone.handle.Free()

    def wrong(self, rng: random.Random, comm: Comm) -> None:
        """Some members make collective calls that fail on their arguments. For MPI these are no calls (two-phase commit
        can't know that)."""
        kinds: list[Callable[[MPI.Comm], object]] = [
            lambda c: c.Bcast(np.zeros(1), root=c.size), lambda c: c.Ibcast(np.zeros(1), root=-7),
            lambda c: c.Bcast_init(np.zeros(1), root=c.size),
            lambda c: c.Allreduce(MPI.IN_PLACE, np.zeros(1), MPI.OP_NULL), lambda c: c.Create(MPI.GROUP_NULL),
            lambda c: c.Create_cart([c.size + 1]),
        ]  # fmt: skip
        who, chosen = rng.sample(comm.members, rng.randint(1, comm.size)), rng.choices(kinds, k=rng.choice([1, 4]))
        if ME not in who or comm.handle is None or self.blocking:
            return
        for kind in chosen:
            try:
                kind(comm.handle)
            except MPI.Exception as error:
                assert error.Get_error_class() != MPI.ERR_OTHER
            else:
                raise AssertionError("a wrong call has succeeded")

    def idle(self, rng: random.Random, comm: Comm) -> None:
        """One rank computes or sleeps; the others continue."""
        who, kind = rng.choice(comm.members), rng.randrange(2)
        if who != ME:
            return
        if kind:
            time.sleep(0.05)
        else:
            a = self.data(10000).reshape(100, 100).astype("f8")
            for _ in range(10):
                a = np.rint(a @ a) % 1009
            self.note(a)


def main() -> None:
    arguments = parser("seed", "steps")
    arguments.add_argument("--blocking", action="store_true")
    options = arguments.parse_args()
    Stress(options.seed, options.blocking).run(options.steps, options.pause)


run(main)
