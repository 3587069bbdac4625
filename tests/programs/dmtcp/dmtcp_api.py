"""A Python program written for DMTCP. It finds the functions in the main program, before and after MPI is loaded. It
does not depend on manapy."""

import ctypes
import os
import sys
import time
from pathlib import Path

api = ctypes.CDLL(None)
assert api.dmtcp_is_enabled() == 1
assert "libmpi" not in Path("/proc/self/maps").read_text(), "the functions have brought MPI with them"
print(f"preload {os.environ.get('LD_PRELOAD')}\n", end="", flush=True)
child = os.fork()
if child == 0:
    os._exit(10 * api.dmtcp_is_enabled() + api.dmtcp_checkpoint())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3, "a forked child has no engine"
assert api.dmtcp_checkpoint() == 1
assert api.dmtcp_get_generation() == 1

from mpi4py import MPI  # noqa: E402

rank = MPI.COMM_WORLD.rank
assert api.dmtcp_disable_ckpt() == 1
assert api.dmtcp_checkpoint() == 0, "this thread has disabled checkpoints"
assert api.dmtcp_enable_ckpt() == 1
assert api.dmtcp_enable_ckpt() == 0, "not disabled"
api.dmtcp_get_ckpt_filename.restype = ctypes.c_char_p
api.dmtcp_get_ckpt_dir.restype = ctypes.c_char_p
image = Path(os.fsdecode(api.dmtcp_get_ckpt_filename()))
assert image.name == f"rank-{rank:05d}.img" and image.is_file(), image
usual = api.dmtcp_get_ckpt_dir()
assert api.dmtcp_set_ckpt_dir(b"/nowhere/at/all") == 4 and api.dmtcp_get_ckpt_dir() == b"/nowhere/at/all"
MPI.COMM_WORLD.Barrier()
assert api.dmtcp_checkpoint() == 0, "that directory can't be made"
assert api.dmtcp_set_ckpt_dir(usual) == 4 and api.dmtcp_get_ckpt_dir() == usual
MPI.COMM_WORLD.Barrier()

result = api.dmtcp_checkpoint()
MPI.COMM_WORLD.Barrier()
print(f"rank {rank} got {result}, generation {api.dmtcp_get_generation()}\n", end="", flush=True)
if result == 1:
    time.sleep(3600)
sys.exit(0 if result == 2 else 1)
