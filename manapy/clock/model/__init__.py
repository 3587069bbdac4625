"""The clock as an executable model: abstract MPI programs run on it under a random scheduler.

No code here runs in a job.
"""
