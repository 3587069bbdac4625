"""The coordinator: the process of a job that drives its checkpoints. It talks to all ranks and to commands."""
