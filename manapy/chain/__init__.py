"""Chains: a job that goes on through allocations, crashes and lost nodes."""
