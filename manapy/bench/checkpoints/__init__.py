"""Jobs about checkpoints: time and size of images, messages of the protocols."""
