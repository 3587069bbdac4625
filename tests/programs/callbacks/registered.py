"""Callbacks that are added and removed, in a program without MPI. FOLDER/end ends it."""

import os
import subprocess
import sys
import time

import manapy

checkpoints = 0


class Holder:
    def method(self) -> None:
        print("method", flush=True)
        manapy.remove_callback(self.method)


def added() -> None:
    print("added", flush=True)


def first() -> None:
    print("first", flush=True)


@manapy.before_checkpoint
def removed() -> None:
    raise AssertionError("it was removed")


manapy.remove_callback(removed)
manapy.after_checkpoint(Holder().method)
manapy.before_checkpoint(first)


@manapy.before_checkpoint
def second() -> None:
    print(subprocess.run(["echo", "second"], capture_output=True, text=True, check=True).stdout, end="", flush=True)


@manapy.after_checkpoint
def after() -> None:
    global checkpoints
    if checkpoints == 0:
        manapy.before_checkpoint(added)
        manapy.remove_callback(first)
        manapy.before_checkpoint(first)
        manapy.remove_callback(second)
        manapy.before_checkpoint(second)
    checkpoints += 1
    print(f"after {checkpoints}", flush=True)


@manapy.after_restart
def restarted() -> None:
    print("restarted", flush=True)


most = [manapy.after_restart(lambda n=n: print(n)) for n in range(256 - 5)]
try:
    manapy.after_restart(lambda: None)
except RuntimeError as error:
    print(error)
for callback in most:
    manapy.remove_callback(callback)

print("running", flush=True)
while not os.path.exists(os.path.join(sys.argv[1], "end")):
    time.sleep(0.01)
    manapy.poll()
print("ok", flush=True)
