"""Functions of the program that are called at checkpoints: to close what cannot be saved, and to open it again.

    import manapy

    @manapy.before_checkpoint
    def leave():
        database.close()

    @manapy.after_checkpoint
    @manapy.after_restart
    def come_back():
        database.connect()

docs/callbacks.md has the rules. Outside manapy nothing is ever called.

The functions of libdmtcp.so (wrappers/callbacks.c) do the work; manapy/include/manapy.h describes them. That library is
in every program that manapy-launch runs, also without MPI.

Invariants
 1. A callback runs on the main thread where the program cannot be in the middle of what the callback closes: in a call
    of MPI that waits, in poll(), and in manapy.checkpoint(). A handler of Python would run between any two byte codes,
    and in the middle of a recv(); so only callbacks_anywhere() makes one, for a signal that the lower half sends.
 2. What C may call, Python keeps alive: in _registered, and in _removed as long as it may be running. Only the main
    thread, outside of callbacks, knows that none is.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

_BEFORE_CHECKPOINT, _AFTER_CHECKPOINT, _AFTER_RESTART = range(3)  # manapy_moment_t
_REGISTERED = 1
_SIGNALS = range(61, 34, -1)  # real-time signals; manapy has 62, and the C library 32 and 33

_C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Callback = TypeVar("_Callback", bound=Callable[[], object])


class _Registration(NamedTuple):
    callback: Callable[[], object]
    function: Any  # of _C_FUNCTION


_registered: list[_Registration] = []
_removed: list[_Registration] = []
_running = False  # a callback


def before_checkpoint(callback: _Callback) -> _Callback:
    """Call ``callback()`` before each checkpoint, in reverse order of registration. Returns it, so this is a decorator.

    An exception refuses this checkpoint: `manapy checkpoint` prints it, and the program goes on. Raises RuntimeError if
    there are 256 callbacks already.
    """
    return _register(_BEFORE_CHECKPOINT, callback)


def after_checkpoint(callback: _Callback) -> _Callback:
    """Call ``callback()`` when the program goes on after a checkpoint, in order of registration; also after one that
    was refused, if callbacks of this rank had been called before it. An exception is printed; the program goes on.
    Raises RuntimeError as before_checkpoint does."""
    return _register(_AFTER_CHECKPOINT, callback)


def after_restart(callback: _Callback) -> _Callback:
    """Call ``callback()`` instead of those of after_checkpoint when the program continues from a checkpoint in a new
    process. Raises RuntimeError as before_checkpoint does."""
    return _register(_AFTER_RESTART, callback)


def remove_callback(callback: Callable[[], object]) -> None:
    """Call it no more, at no moment. Does nothing if it is not registered."""
    if not _running and threading.current_thread() is threading.main_thread():
        _removed.clear()
    library = ctypes.CDLL(None)
    for entry in [entry for entry in _registered if entry.callback == callback]:
        library.manapy_unregister(entry.function, None)
        _registered.remove(entry)
        _removed.append(entry)


def poll() -> None:
    """A moment at which callbacks may run, for a main thread that seldom calls MPI. If a checkpoint waits for this one,
    it returns after the checkpoint, else at once (0.2 µs)."""
    function = _run_callbacks()
    if function is not None:
        function()


@cache  # once
def callbacks_anywhere() -> None:
    """Let callbacks run anywhere in the main thread's Python code from now on, as handlers of signals do: between two
    byte codes, and in waits for I/O, locks and time, which go on afterwards.

    For a program that needs long until it calls MPI or poll(). It must then expect callbacks everywhere: manapy.dmtcp
    has dmtcp_disable_ckpt() and dmtcp_enable_ckpt() for a transaction with what they close. Takes an unused real-time
    signal. Call it on the main thread, else it raises ValueError.
    """
    run = _run_callbacks()
    if run is None:
        return
    number = next(number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL)
    signal.signal(number, lambda *_: run())
    ctypes.CDLL(None).manapy_knock_by(number)


@cache
def _run_callbacks() -> Callable[[], object] | None:
    return getattr(ctypes.CDLL(None), "manapy_run_callbacks", None)


def _register(moment: int, callback: _Callback) -> _Callback:
    library = ctypes.CDLL(None)
    if getattr(library, "manapy_register", None) is None or not library.dmtcp_is_enabled():
        return callback

    def call(_: object) -> int:
        global _running
        _running = True
        try:
            callback()
        except BaseException as error:  # SystemExit, too: the caller is C, which an exception cannot end
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            library.manapy_give_reason(text.encode(errors="replace"))
            return 1
        finally:
            _running = False
        return 0

    function = _C_FUNCTION(call)
    name = getattr(callback, "__qualname__", None) or repr(callback)
    if library.manapy_register(moment, function, None, name.encode(errors="replace")) != _REGISTERED:
        raise RuntimeError("this process has 256 callbacks for checkpoints already")
    _registered.append(_Registration(callback, function))
    return callback
