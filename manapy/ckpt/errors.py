"""What can go wrong, as one tree. Every message is one line for a person; only manapy.cli prints it.

    ManapyError            the command failed: exit code 1
      UsageError           it was called wrongly: exit code 2
      JobError             no such job, more than one, or it doesn't run any more
        CoordinatorError   its coordinator can't be reached or doesn't share the secret
      CheckpointError      a checkpoint couldn't be taken; the job goes on and the last good one is untouched
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


class CheckpointError(ManapyError):
    """No checkpoint was published."""


class ManifestError(ManapyError):
    """Not a complete checkpoint."""


class ImageError(ManapyError):
    """Not a good image."""
