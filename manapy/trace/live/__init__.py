"""Follows a running job: what each rank does now, the verdicts of each look, and how a watch combines them."""
