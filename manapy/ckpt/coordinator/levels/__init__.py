"""Levels of storage, as the coordinator drives them: local to the hosts, redundant (survives the loss of hosts),
shared."""
