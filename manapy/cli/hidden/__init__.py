"""Commands that manapy itself starts, not a person: the coordinator, and helpers of manapy-launch and `manapy why`."""
