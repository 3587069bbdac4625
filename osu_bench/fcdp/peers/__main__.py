"""Trains a decoder like GPT-2 that is sharded over several ranks, by manapy or by another library. It makes one step
for each line "step" that rank 0 reads. The end of the input ends the job.

    (echo step; echo step) | mpirun -n 4 python osu_bench/fcdp/peers --by fcdp
    RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... GLOO_SOCKET_IFNAME=eth0 \\
        python osu_bench/fcdp/peers --by fsdp2     and the same for each other rank
    (echo step; echo step) | python osu_bench/fcdp/peers --by alone --ranks 4

Rank 0 prints a line of JSON when all ranks are ready (bytes of parameters; host and process of each rank), and one for
each step: its seconds, from the moment when all ranks begin to the moment when all have ended, and the mean loss. The
network may be changed between two steps. All libraries begin with the same values and get the same sentences.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time

import torch
from libraries import LIBRARIES
from model import add_arguments, build


def main() -> None:
    """Print the sizes, then train step by step."""
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--by", choices=sorted(LIBRARIES), required=True)
    add_arguments(parser)
    add("--ranks", type=int, default=1, help="--by alone: for how many")
    add(
        "--defer",
        action="store_true",
        help="--by fsdp2: whole gradients stay on each rank until the last micro-batch, and are summed then only",
    )
    add("--tau", type=float, default=0.0, help="--by fcdp: share of the device up to which gathered units stay there")
    add("--budget", type=int, metavar="BYTES", help="of manapy's device")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = build(options)
    sizes = {
        kind: sum(p.nbytes for p in model.parameters() if p.requires_grad or kind == "parameters")
        for kind in ("parameters", "trainable")
    }
    with LIBRARIES[options.by](model, options) as training:
        say(training.rank, {**sizes, "ranks": training.share((platform.node(), os.getpid()))})
        while training.share(sys.stdin.readline().strip() if training.rank == 0 else "")[0] == "step":
            begin = time.perf_counter()
            loss = training.step()
            losses = training.share(loss)  # waits for all ranks
            say(training.rank, {"seconds": time.perf_counter() - begin, "loss": sum(losses) / len(losses)})


def say(rank: int, what: dict[str, object]) -> None:
    """One rank does it for all."""
    if rank == 0:
        print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
