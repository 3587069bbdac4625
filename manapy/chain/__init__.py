"""Chains: jobs that continue through allocations, crashes and lost nodes."""
