"""Calls on the network of an emulated node (emulated.py), in a thread of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
CLONE_NEWNET = 0x40000000


def call_inside(node: str, function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """Call a function of this process in a thread that is on the node's network, as are threads and processes that it
    starts."""

    def enter() -> None:
        with open(f"/run/netns/{node}") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    with ThreadPoolExecutor(1, initializer=enter) as thread:
        return thread.submit(function, *arguments, **named).result()
