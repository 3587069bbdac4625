"""How the whole suite is spread over processes of pytest (pytest-xdist; tools/test starts them).

A lane is what runs one test after the other in one process. Each file is one, as its tests share what its fixtures have started. All
tests in the RDMA machine are one, and all in Slurm: each of them needs the whole machine, or all the nodes. These two take longest and
begin first; then MPI jobs, which mostly wait; unit tests fill what is left at the end.
Tests of different lanes have no names, ports or files in common.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ORDER = ("slurm", "rdma", "integration", "unit")  # of lanes, by the first of these that their names begin with


def lane(nodeid: str) -> str:
    """The lane of a test: "rdma", "slurm", or its file.

    >>> lane("tests/rdma/test_vm.py::test_run"), lane("tests/unit/test_imports.py::test_circles")
    ('rdma', 'unit/test_imports.py')
    """
    path = nodeid.partition("::")[0].removeprefix("tests/")
    if path.startswith("rdma/"):
        return "rdma"
    return "slurm" if path.startswith("integration/test_slurm_") else path


def rank(nodeid: str) -> int:
    """Where a test's lane begins: 0 first."""
    name = lane(nodeid)
    return next((place for place, start in enumerate(ORDER) if name.startswith(start)), len(ORDER))


class Lanes(LoadScopeScheduling):
    """Hands out lanes in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)
