"""What can go wrong, as one tree. Every message is one line for a person; only manapy.cli prints it.

    ManapyError            the command failed: exit code 1
      UsageError           it was called wrongly: exit code 2
      JobError             no such job, more than one, or it doesn't run any more
        CoordinatorError   its coordinator can't be reached or doesn't share the secret
          GoneError        nobody listens where it should be
      CheckpointError      a checkpoint couldn't be taken; the last good one is untouched
        DiedError          because ranks have died; otherwise the job goes on
      ManifestError        a directory is no checkpoint, or its manifest is damaged
      ImageError           an image is missing, damaged or of another version
      AgentError           a host's RDMA agent can't be reached, doesn't share the secret, or refuses
      StoreError           the store in which RDMA agents keep their keys can't be used now
        LeaseLostError     it has given up the keys of a client that wasn't kept alive in time
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ManapyError(Exception):
    """The root."""


class UsageError(ManapyError):
    """Wrong arguments."""


class JobError(ManapyError):
    """No such job, or not in the state that's needed."""


class CoordinatorError(JobError):
    """The conversation with the coordinator failed."""


class GoneError(CoordinatorError):
    """There is no coordinator."""


class CheckpointError(ManapyError):
    """No checkpoint was published."""


class DiedError(CheckpointError):
    """Ranks have died: what the coordinator serves comes to an end."""


class ManifestError(ManapyError):
    """Not a complete checkpoint."""


class ImageError(ManapyError):
    """Not a good image."""


class AgentError(ManapyError):
    """The conversation with an RDMA agent failed."""


class StoreError(ManapyError):
    """The key-value store failed."""


class LeaseLostError(StoreError):
    """A lease has expired, and its keys with it."""


def why(error: OSError, where: object = "") -> str:
    """One line: the file that the error names, or else ``where``, and what is wrong there."""
    place = error.filename or where
    return f"{place}: {error.strerror or error}" if place else error.strerror or str(error)


@contextmanager
def explained(kind: type[Exception], where: object = "", doing: str = "") -> Iterator[None]:
    """An OSError of the body is raised as ``kind``, in one line that begins with ``doing``: "cannot make "."""
    try:
        yield
    except OSError as error:
        raise kind(f"{doing}{why(error, where)}") from error
