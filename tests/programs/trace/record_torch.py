"""Two jobs of four ranks with PyTorch and Gloo, of which PyTorch's own tools make recordings in a folder:

    python record_torch.py OUT

hung-RANK, hung-RANK.json: dumps of the Flight Recorder, in both forms, while rank 2 keeps the others waiting in their
    seventh all_reduce for SECONDS.
slow-RANK.json: torch.profiler's traces of ten iterations in which rank 1 is slow.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

RANKS, SECONDS = 4, 6
os.environ["TORCH_FR_BUFFER_SIZE"] = "64"  # read when torch is loaded

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402


def hung(rank: int, out: Path) -> None:
    """Rank 2 leaves the others alone in an all_reduce until all have dumped."""
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    data = torch.ones(16)
    work = None
    for step in range(7):
        dist.broadcast(data, src=rank // 2 * 2, group=pair)
        if rank != 2 or step < 6:
            work = dist.all_reduce(data, async_op=True)
            if step < 6:
                work.wait()
    time.sleep(SECONDS)
    (out / f"hung-{rank}").write_bytes(_distributed_c10d._dump_fr_trace(True, False, False))
    text = _distributed_c10d._dump_fr_trace_json(True, False)
    (out / f"hung-{rank}.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    (out / f".dumped-{rank}").touch()
    while len(list(out.glob(".dumped-*"))) < RANKS:
        time.sleep(0.01)
    if rank == 2:
        dist.all_reduce(data)
    elif work is not None:
        work.wait()


def slow(rank: int, out: Path) -> None:
    """Rank 1 comes late to each all_reduce."""
    data = torch.ones(1024)
    for _ in range(3):
        dist.all_reduce(data)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(10):
            time.sleep(0.15 if rank == 1 else 0.01)
            dist.all_reduce(data)
            dist.broadcast(data, src=0)
            if rank == 0:
                dist.send(data, 3)
            if rank == 3:
                dist.recv(data, 0)
    found.export_chrome_trace(str(out / f"slow-{rank}.json"))


def run(job: Callable[[int, Path], None], rank: int, out: Path) -> None:
    """Run one rank of a job."""
    store = f"file://{out}/.store-{job.__name__}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    job(rank, out)
    dist.barrier()


def main(out: Path) -> int:
    """Fork the ranks of each job: PyTorch is loaded once."""
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for job in (hung, slow):
        ranks = []
        for rank in range(RANKS):
            if (pid := os.fork()) == 0:
                try:
                    run(job, rank, out.absolute())
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            ranks.append(pid)
        if any([os.waitpid(pid, 0)[1] for pid in ranks]):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
