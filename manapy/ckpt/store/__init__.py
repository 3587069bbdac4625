"""Jobs and checkpoints on disk: job directories, publishing, images, and which of them can be trusted."""
