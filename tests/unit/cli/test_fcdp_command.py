"""`manapy fcdp advise`: tables, data, and one line for invalid values."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from manapy import cli
from manapy.fcdp.costs import STRATEGIES, bytes_per_node

JOB = ["fcdp", "advise", "--params", "30B", "--nodes", "4", "--gpus", "8", "--bandwidth", "10G"]


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert cli.main([*JOB, *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {
        "job": found["job"],
        "advice": found["advice"],
        **{option["strategy"]: option for option in found["strategies"]},
    }


def test_tables_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--intra-bandwidth", "200GB/s", "--host-bandwidth", "200GB/s"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:9]] == [line.split()[0] for line in lines[12:19]] == list(STRATEGIES)
    assert lines[2].split()[1:11] == ["45.0", "GB", "0", "B", "45.0", "GB", "90.0", "GB", "90.0", "GB"]
    assert "fits" not in lines[11] and "largest" not in lines[11] and "no --compute" in lines[10]
    assert lines[-1].startswith("fcdp: 72.9 s a step, 1.92 times as fast as zero3") and len(lines) == 21


def test_columns_of_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main([*JOB, "--device-memory", "48GB", "--activations", "1GB", "--layers", "40", "--compute", "10s"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[11].split() == "strategy device host fits largest batch largest tau network alone step".split()
    assert next(line for line in lines[12:] if line.startswith("mics")).split()[5] == "no"


def test_data_is_what_the_closed_forms_say(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(
        capsys, "--trainable", "1%", "--micro-batches", "4", "--dtype", "mixed-fp32-reduce", "--collective", "pairwise"
    )
    for strategy in STRATEGIES:
        phases = bytes_per_node(strategy, 4, 8, 0.6e9, 59.4e9, 1.2e9, 4, collective="pairwise")
        said = found[strategy]["phases"]  # type: ignore[index]
        assert said["reduce"]["inter"] == pytest.approx(phases.reduce.inter)
        assert said["forward"]["intra"] == pytest.approx(phases.forward.intra)
    assert found["advice"]["strategy"] in STRATEGIES


def test_what_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--trainable", "0.05%"], ["--trainable", "0.0005"], ["--trainable", "15M"]):
        job = data(capsys, *arguments)["job"]
        assert (job["trainable"], job["frozen"]) == (pytest.approx(15e6), pytest.approx(30e9 - 15e6))
    job = data(capsys, "--lora", "16", "--layers", "40", "--hidden", "7936")["job"]
    assert (job["trainable"], job["frozen"]) == (4 * 40 * 16 * (7936 + 7936), 30e9)
    assert data(capsys)["job"]["frozen"] == 0


def test_computation_from_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert data(capsys, "--tflops", "75", "--tokens", "1M")["job"]["compute"] == pytest.approx(
        6 * 30e9 * 1e6 / (75e12 * 32)
    )
    assert data(capsys, "--compute", "75s")["job"]["compute"] == 75


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--device-memory", "10GB"]) == 1
    assert (
        capsys.readouterr().err
        == "manapy: nothing fits: even zero3 needs 15.0 GB on a device with 10.0 GB; on 6 nodes it would fit\n"
    )


def test_a_tau_that_keeps_too_much(capsys: pytest.CaptureFixture[str]) -> None:
    memory = ["--device-memory", "48GB", "--activations", "1GB", "--layers", "40"]
    assert cli.main([*JOB, *memory, "--tau", "0.7"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main([*JOB, *memory, "--tau", "0.9"]) == 0
    assert "above a tau of 0.79, kept parameters may have to make room" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--params", "many"], "--params: not a number such as 30B"),
        (["--nodes", "0"], "--nodes: not a number of at least 1"),
        (["--lora", "65", "--layers", "40", "--hidden", "64"], "--lora 65 is larger than --hidden 64"),
        (["--bandwidth", "10GB"], "--bandwidth: not a bandwidth such as 10G"),
        (["--device-memory", "lots"], "--device-memory: not a size"),
        (["--trainable", "150%"], "--trainable: not a share"),
        (["--trainable", "31B"], "more than --params"),
        (["--lora", "16"], "--lora needs --layers and --hidden"),
        (["--lora", "16", "--trainable", "1%"], "not allowed with"),
        (["--tau", "1.5"], "--tau: not a share"),
        (["--tau", "0.5"], "device's memory, which is not given"),
        (["--tflops", "70"], "--tflops and --tokens need each other"),
        (["--compute", "1s", "--tokens", "1M"], "cannot be combined"),
        (["--dtype", "int3"], "--dtype: invalid choice"),
        (["--overlap", "2"], "--overlap: not a share"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1] and "Traceback" not in error


def test_imports_nothing_heavy() -> None:
    code = (
        f"import sys; from manapy.cli import main; main({JOB}); print(*(m for m in ('rich', 'numpy', 'mpi4py', "
        f"'torch') if m in sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        == ""
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--strategy", "ddp"], "--strategy: invalid choice: 'ddp'"),
        (["--tau", "1.5"], "--tau: not a share such as 0.5"),
        (["--rate", "0"], "--rate: not a rate such as 0.001"),
        (["--steps", "0"], "--steps: not a number of at least 1"),
    ],
)
def test_wrong_usage_of_train_is_told_by_rank_0(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["fcdp", "train", *arguments]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.setenv("PMI_RANK", "1")
    assert cli.main(["fcdp", "train", *arguments]) == 2
    assert capsys.readouterr() == ("", "")


def test_a_silent_rank_without_mpi_speaks() -> None:
    """Without MPI rank 0 does not hear of it."""
    code = "import sys; sys.modules['mpi4py'] = None; from manapy.cli import main; sys.exit(main(['fcdp', 'train']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PMI_RANK": "1"}
    )
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"manapy: \S+: manapy\.fcdp needs mpi4py and an MPI library: .*\n", done.stderr)
