"""The errors of sharded training. All are ManapyError, so that the command line prints one line.

FcdpError
  TopologyError     the ranks cannot be divided into nodes of one size, or MPI lacks MPI_THREAD_MULTIPLE
  SetupError        unknown strategy, threshold out of range, bad units, or parameters that differ between ranks
  BudgetError       something does not fit into the device's budget: what, and how much is missing
  OrderError        the ranks use units in different orders, or the engine's calls have a wrong order
  GradientError     gradients that aren't finite
  StateError        a state could not be saved, is damaged, or belongs to another model
  RemoteError       another rank has failed: which, and with what message
"""

from __future__ import annotations

from ..core.errors import ManapyError


class FcdpError(ManapyError):
    """The root."""


class TopologyError(FcdpError):
    """No layout of nodes."""


class SetupError(FcdpError):
    """Units or options that can't be used."""


class BudgetError(FcdpError):
    """Device memory is short."""


class OrderError(FcdpError):
    """Calls in a wrong order."""


class GradientError(FcdpError):
    """Gradients aren't finite."""


class StateError(FcdpError):
    """Saving or loading failed."""


class RemoteError(FcdpError):
    """Another rank has failed."""


def is_failure(error: BaseException | None) -> bool:
    """Does this exception mean that the block has failed? Not if the program ends regularly by sys.exit() in it, or
    closes a generator that contains it.

    An interrupt is a failure: it stops each rank at a different place, where others wait for it.
    """
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return error is not None and not isinstance(error, GeneratorExit)
