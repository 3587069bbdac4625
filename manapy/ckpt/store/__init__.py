"""Jobs and checkpoints on disk: job directories, publishing, images, and what may be believed of them."""
