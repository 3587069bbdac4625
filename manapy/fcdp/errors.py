"""What can go wrong in sharded training. All are ManapyError, so that the command line shows one line.

FcdpError
  TopologyError     the ranks can't be laid out in nodes of one size, or MPI lacks MPI_THREAD_MULTIPLE
  SetupError        unknown strategy, threshold out of range, bad units, or parameters that differ between ranks
  BudgetError       something doesn't fit into the device budget: what, and how much is missing
  OrderError        the ranks use units in different orders, or the engine's calls don't follow one another as they must
  GradientError     gradients that aren't finite
  StateError        a state couldn't be saved, is damaged, or is that of another model
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
    """Has a block failed that is left by this? Not if the program ends well in it by sys.exit(), or closes a generator
    that holds it.

    An interrupt is a failure: it comes to each rank at another place, where others wait for it.
    """
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return error is not None and not isinstance(error, GeneratorExit)
