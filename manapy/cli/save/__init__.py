"""Commands that take checkpoints and look after them: checkpoint, stop, list, inspect, verify, drop,
prune.

Nothing else is here: the module of `list` hides the builtin from code in this file.
"""
