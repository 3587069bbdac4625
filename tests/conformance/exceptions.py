"""Programs of MPICH's test/mpi that can't show under manapy what they show natively, and why that is no defect."""

from __future__ import annotations

KNOWN: dict[str, str] = {}  # folder/program: reason
