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
"""

from __future__ import annotations


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
