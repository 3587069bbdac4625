"""Finding the MPI library that a job will use, and telling which ABI family it is of."""

from ._find import Candidate, Family, candidates, family_of

__all__ = ["Candidate", "Family", "candidates", "family_of"]
