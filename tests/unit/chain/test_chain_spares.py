"""Spare nodes: what is asked for, which nodes are used, and the allocation that the script sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from histories import History
from manapy import cli
from manapy.chain.slurm import Allocation
from manapy.chain.spares import AllocatedNodes, Shape, choose, environment, shape


@pytest.mark.parametrize(
    ("header", "options", "expected"),
    [
        (["--nodes=2 --ntasks=4"], [], (2, 4, 1, 0)),
        (["-N 2 -n4   # four ranks"], [], (2, 4, 1, 0)),
        (["--job-name='a -N 9'", "-N2"], [], (2, 2, 1, 0)),
        (["--nodes=2-2 --ntasks-per-node=3"], [], (2, 6, 1, 3)),
        (["--nodes 3"], ["--nodes", "2", "--time=5"], (2, 2, 1, 0)),
        (["--nodes=2"], ["-N", "4", "-n", "6", "--exclusive"], (4, 6, 1, 0)),
    ],
)
def test_shape(header: list[str], options: list[str], expected: tuple[int, ...]) -> None:
    assert shape([f"#SBATCH {line}" for line in header], options, 1) == expected


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("--ntasks=4", "the number of nodes that the program needs is missing"),
        ("--nodes=2-4", "the number of nodes that the program needs is missing"),
        ("--nodes=0", "the number of nodes that the program needs is missing"),
        ("--nodes=", "the number of nodes that the program needs is missing"),
        ("--nodes=4 --ntasks=2", "2 tasks cannot use 4 nodes"),
        ("--nodes=2 --gpus=8", "--gpus counts for the whole allocation: use --gpus-per-node"),
        ("--nodes=2 -G8", "-G counts for the whole allocation: use --gpus-per-node"),
        ("--nodes=2\n#SBATCH hetjob\n#SBATCH --nodes=1", "several components"),
        ("--nodes=2 --comment='x", "--comment='x: No closing quotation"),
    ],
)
def test_no_shape(header: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says why, and no chain is made."""
    script, chain = tmp_path / "job.sh", tmp_path / "chain"
    script.write_text(f"#!/bin/bash\n#SBATCH {header}\ntrue\n")
    assert cli.main(["slurm", "chain", "--dir", str(chain), "--spares", "1", str(script)]) == 2
    error = capsys.readouterr().err
    assert text in error and error.startswith("manapy") and error.count("\n") == 1, error
    assert not chain.exists()


def test_what_is_asked_for() -> None:
    """Each node has places for as many tasks as the fullest one needs: any one may take its place."""
    asked = ["--no-kill", "--nodes=4", "--ntasks=12", "--ntasks-per-node=3"]
    assert Shape(2, 5, 2).options() == asked and Shape(2, 5, 2).per_node == [3, 2]


@pytest.mark.parametrize(
    ("bad", "doubtful", "expected"),
    [
        ([], [], ["a", "b"]),
        (["a"], [], ["b", "c"]),
        (["b"], ["a"], ["c", "d"]),
        (["b", "d"], ["c"], ["a", "c"]),  # the others are too few
        (["b"], ["a", "c"], ["a", "d"]),  # the one that failed first comes back
        (["b", "c", "d"], ["a"], []),
    ],
)
def test_choose(bad: list[str], doubtful: list[str], expected: list[str]) -> None:
    assert choose(["a", "b", "c", "d"], bad, doubtful, 2) == expected


def test_environment() -> None:
    """As in an allocation that has never had the other nodes."""
    whole = {
        "SLURM_JOB_NODELIST": "n[1-4]",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_NTASKS": "12",
        "SLURM_NTASKS_PER_NODE": "3",
        "SLURM_TASKS_PER_NODE": "3(x4)",
        "SLURM_JOB_CPUS_PER_NODE": "6(x2),8,6",
        "SLURMD_NODENAME": "n1",
        "OMPI_MCA_plm_slurm_args": "--mem=0",
        "HOME": "/home/me",
    }
    found = environment(whole, ["n1", "n2", "n3", "n4"], ["n1", "n3", "n4"], Shape(3, 5, 1))
    assert found == {
        "SLURM_JOB_NODELIST": "n1,n3,n4",
        "SLURM_NODELIST": "n1,n3,n4",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NNODES": "3",
        "SLURM_NTASKS": "5",
        "SLURM_NPROCS": "5",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
        "SLURM_JOB_CPUS_PER_NODE": "6,8,6",
        "SLURMD_NODENAME": "n1",
        "OMPI_MCA_plm_slurm_args": "--mem=0 --nodelist=n3,n4",
        "HOME": "/home/me",
    }


def test_full_disk(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of nodes are elsewhere, and there is no sentinel. Lines say so."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    slurm.answer("scontrol", "echo n1; echo n2")
    slurm.answer("sinfo", "echo n1 allocated; echo n2 allocated")
    history.chain.record["spares"] = Shape(1, 2, 1)._asdict()
    for name in ("tasks", "hosts", "sentinel.log"):
        (history.chain.dir / name).mkdir()
    said: list[str] = []
    fleet = AllocatedNodes(history.chain, Allocation(None, 60), said.append)
    fleet.start_sentinel()
    found = fleet.environment({})
    assert Path(found["SLURM_HOSTFILE"]).read_text() == "n1\nn1\n"
    assert fleet.left == ["n2"]
    assert [fleet.can_replace(name) for name in ("n1", "n1.cluster", "n2", "")] == [True, True, False, False]
    assert Path(found["HYDRA_HOST_FILE"]).read_text() == "n1:2\n"
    assert [" ".join(line.split()[:3]) for line in said] == [
        "nothing notices the",
        f"{found['SLURM_HOSTFILE']} is used",
        f"{found['HYDRA_HOST_FILE']} is used",
    ]


def test_tasks_of_a_node() -> None:
    """The variable is there if the script has the option."""
    whole = {"SLURM_NTASKS_PER_NODE": "3"}
    for asked, expected in ((Shape(2, 5, 1, 4), "4"), (Shape(2, 5, 1), None)):
        assert environment(whole, ["a", "b", "c"], ["a", "b"], asked).get("SLURM_NTASKS_PER_NODE") == expected
