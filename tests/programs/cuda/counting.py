"""Ranks that count in the memory of a GPU, by CUDA's driver API. A thread of each reads it all the time.

    counting.py FOLDER

The job ends when the file FOLDER/end is there.
"""

import ctypes
import os
import sys
import threading

from mpi4py import MPI

comm = MPI.COMM_WORLD
cuda = ctypes.CDLL("libcuda.so.1")
COUNT = 1000
Numbers = ctypes.c_uint32 * COUNT
address = ctypes.c_uint64()
ended = False


def call(name: str, *arguments: object) -> None:
    if result := getattr(cuda, name)(*arguments):
        sys.exit(f"{name}: error {result}")


def numbers() -> list[int]:
    read = Numbers()
    call("cuMemcpyDtoH_v2", read, address, ctypes.sizeof(read))
    return list(read)


def watch() -> None:
    call("cuCtxSetCurrent", context)
    last = 0
    while not ended:
        seen = numbers()
        assert seen[0] >= last and len({*seen}) == 1, seen[:3]
        last = seen[0]


device, context = ctypes.c_int(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4 * COUNT))
call("cuMemcpyHtoD_v2", address, Numbers(), ctypes.c_size_t(4 * COUNT))
watcher = threading.Thread(target=watch)
watcher.start()
step = 0
while True:
    step += 1
    assert numbers() == [step - 1] * COUNT, (step, numbers()[:3])
    call("cuMemcpyHtoD_v2", address, Numbers(*[step] * COUNT), ctypes.c_size_t(4 * COUNT))
    if step % 50 == 0:
        print(f"rank {comm.rank} step {step}", flush=True)
    if comm.allreduce(int(os.path.exists(os.path.join(sys.argv[1], "end")))):
        break
ended = True
watcher.join()
print("ok" if numbers() == [step] * COUNT else f"FAILED {numbers()[:3]} {step}", flush=True)
