"""Follows a job that runs: what each rank does now, the verdicts of each look, and what a watch makes of them."""
