"""Reads recordings: trace files, their rings and clocks, on this host and on others."""
