"""Real MPI applications natively, under manapy, and through checkpoints, SIGKILL and restarts, compared by result.

programs.py   the applications: packages, commands, results, tolerances
inputs.py     their small inputs
packages.py   installs Debian packages; says which ones are missing
results.py    a result: numbers, texts and digests; how well two results agree
extract.py    takes the result out of an application's output
running.py    the runs: native, under manapy, through restarts
cause.py      why a run has no result
place.py      the directory of the runs
record.py     what an application has shown, and the file that keeps it
table.py      the table for people and for the README
"""

import paths  # noqa: F401
