"""A job that is kept alive while faults happen: useful work per time, by manapy and by two simpler ways."""
