"""Finds out whether a job is stuck, and which rank is to blame. Each verdict has a module."""
