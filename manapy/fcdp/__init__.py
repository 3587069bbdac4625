"""FCDP: sharded training that crosses the network once per step (Fully Cached Data Parallel)."""
