"""Finds the MPI library that a job will use, and its ABI family."""

from ._find import Candidate, Family, candidates, family_of

__all__ = ["Candidate", "Family", "candidates", "family_of"]
