"""The clock as an executable model: abstract MPI programs run on it under a random scheduler.

Nothing here runs in a job.
"""
