"""Levels of storage, as the coordinator drives them: local to the hosts, what survives the loss of hosts, shared."""
