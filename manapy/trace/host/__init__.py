"""Looks at the processes of ranks on this host: whether they live, compute, read, write or wait for a processor."""
