"""Reads what was recorded: trace files, their rings and clocks, on this host and on others."""
