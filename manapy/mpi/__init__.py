"""Finds the MPI library that a job will use, and its ABI family; and libpmix."""

from ._find import Candidate, Family, candidates, family_of, under_srun
from ._pmix import Pmix, find_pmix

__all__ = ["Candidate", "Family", "Pmix", "candidates", "family_of", "find_pmix", "under_srun"]
