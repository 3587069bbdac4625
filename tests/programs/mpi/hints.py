"""Windows of three kinds with hints, which are read again when the file argv[1] exists. Prints "ok" or what differs."""

import os
import sys
import time

from mpi4py import MPI

HINTS = {"no_locks": "false", "accumulate_ordering": "none", "same_size": "true"}
comm = MPI.COMM_WORLD
memory = bytearray(32)


def read(window: MPI.Win) -> dict[str, str]:
    info = window.Get_info()
    return {key: value for key, value in info.items() if key in HINTS}


made = MPI.Info.Create({"no_locks": "true", "same_size": "true"})
windows = {
    "create": MPI.Win.Create(memory, 4, made, comm),
    "allocate": MPI.Win.Allocate(32, 4, made, comm),
    "dynamic": MPI.Win.Create_dynamic(made, comm),
}
wrong = [(name, got) for name, window in windows.items() if (got := read(window)).get("no_locks") != "true"]
for window in windows.values():
    window.Set_info(MPI.Info.Create({key: HINTS[key] for key in ("no_locks", "accumulate_ordering")}))
wrong += [(name, got) for name, window in windows.items() if (got := read(window)) != HINTS]
print("ready", flush=True)
while not comm.allreduce(os.path.exists(sys.argv[1]), MPI.LAND):
    time.sleep(0.01)
wrong += [(name, got) for name, window in windows.items() if (got := read(window)) != HINTS]
for window in windows.values():
    window.Free()
print(wrong or "ok", flush=True)
