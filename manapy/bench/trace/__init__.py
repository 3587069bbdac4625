"""Jobs about recorded calls: how well hung and slow ranks are found, and the cost of recorders and watchers."""
