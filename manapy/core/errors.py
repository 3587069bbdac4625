"""The exceptions of manapy, as one tree. Every message is one line for a person; only manapy.cli prints it.

ManapyError            the command failed: exit code 1
  UsageError           it was called wrongly: exit code 2
  JobError             no such job, more than one, or it no longer runs
    CoordinatorError   its coordinator cannot be reached, or does not have the same secret
      GoneError        no process listens at its address
      LeavingError     it no longer accepts commands, because it is about to end
  CheckpointError      a checkpoint could not be taken; earlier ones are unchanged
    DiedError          because ranks have died; otherwise the job goes on
  ManifestError        a directory is no checkpoint, or its manifest is damaged
  ImageError           an image is missing, damaged or of another version
  AgentError           a host's RDMA agent cannot be reached, has another secret, or refuses
  StoreError           the store of the RDMA agents' keys cannot be used now
    LeaseLostError     the store has removed the keys of a client that was not kept alive in time

of other packages:

  BusyError            chain/lock.py: another manapy, or a job that has lost its own, is at work on a chain
  PassingError         chain/batch.py: an error of the file system that may pass has lasted for minutes
  SlurmError           chain/slurm.py: a command of Slurm fails, or says what manapy does not understand
  NoTraceError         trace/capture/rings.py: a folder has no trace files that can be read
  LostError            trace/capture/reach.py: a host does not answer, or not what it should
  ForeignError         trace/convert/foreign.py: a recording of another tool cannot be imported
  ExportError          trace/convert/export.py: a recording cannot be written in the format that was asked for
  ScheduleError        trace/model/schedule.py: a schedule of a training job has no meaning, or does not fit the job
  FcdpError            fcdp/errors.py: sharded training, with a tree of its own there
    TopologyError SetupError BudgetError OrderError GradientError StateError RemoteError
  BenchError           bench/shared/commands.py: a measured command fails
    MachineDiedError   bench/shared/guest.py: the virtual machine with RDMA devices has died
  LeftOutError         bench/shared/commands.py: a measurement is left out, because something is not installed

Errors that no person sees, so no ManapyError: AlteredError (core/handshake.py), WireError (clock/messages.py),
UnfinishedError (trace/capture/tracefile.py), CodeError (trace/convert/plain_pickle.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ManapyError(Exception):
    """The root."""


class UsageError(ManapyError):
    """Wrong arguments."""


class JobError(ManapyError):
    """No such job, or a job in the wrong state."""


class CoordinatorError(JobError):
    """The conversation with the coordinator failed."""


class GoneError(CoordinatorError):
    """There is no coordinator."""


class LeavingError(CoordinatorError):
    """The coordinator takes no commands any more, because it is about to end."""


class CheckpointError(ManapyError):
    """No checkpoint was published."""


class DiedError(CheckpointError):
    """Ranks have died: the job comes to its end."""


class ManifestError(ManapyError):
    """The directory is not a complete checkpoint."""


class ImageError(ManapyError):
    """The file is not a good image."""


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
