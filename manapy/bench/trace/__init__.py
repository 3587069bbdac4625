"""Jobs about recorded calls: how well hung and slow ranks are found, what recorders and watchers cost."""
