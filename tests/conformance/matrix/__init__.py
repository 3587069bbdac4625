"""Programs of each binary interface, launched under each MPI and restarted under each MPI, compared by result.

programs.py   the programs: how they are built, and how they run natively
cells.py      one cell: launch, checkpoint, SIGKILL, restart, result
table.py      the table for people and for the README, and the file of all cells
"""

import paths  # noqa: F401
