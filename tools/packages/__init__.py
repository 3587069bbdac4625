"""What manapy is shipped as: the wheel that tools/wheels builds, and recipes for package managers and containers."""
