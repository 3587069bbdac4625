"""Checkpoints: the coordinator, its protocol with the ranks, job directories, publishing, images."""
