"""Checkpoints of jobs with many more ranks than this machine could run."""
