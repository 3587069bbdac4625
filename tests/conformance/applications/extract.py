"""Take the result of an application out of its output.

Each function gets the directory of a run, and the output of all its mpiruns in order. After a restart some lines stand
there twice, so the last one counts. ResultError: there is no result.
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path

from .results import Result, ResultError

NUMBER = r"([-+]?\d+\.?\d*(?:[eEdD][-+]?\d+)?|[-+]?nan)"


def last(pattern: str, text: str, what: str) -> str:
    """The first group of the last match."""
    found = re.findall(pattern, text, re.MULTILINE)
    if not found:
        raise ResultError(f"no {what} in the output")
    return str(found[-1])


def number(text: str) -> float:
    """A number of C or of Fortran (1.0D+00)."""
    return float(text.upper().replace("D", "E"))


def digest(data: bytes) -> str:
    """A short digest."""
    return hashlib.sha256(data).hexdigest()[:16]


def file(where: Path, name: str) -> bytes:
    """A file that the run has written."""
    try:
        return (where / name).read_bytes()
    except OSError:
        raise ResultError(f"no file {name}") from None


def text_of(where: Path, name: str) -> str:
    """The same as text."""
    return file(where, name).decode(errors="replace")


def quantum_espresso(where: Path, output: str) -> Result:
    """pw.x: the energy of the last cycle, the pressure, the forces, and the charge density."""
    if "JOB DONE." not in output:
        raise ResultError("no JOB DONE in the output")
    return Result(
        numbers={
            "total energy": number(last(rf"^!\s+total energy\s+=\s+{NUMBER} Ry", output, "total energy")),
            "total force": number(last(rf"Total force =\s+{NUMBER}", output, "total force")),
            "pressure": number(last(rf"\(kbar\)\s+P=\s*{NUMBER}", output, "pressure")),
        },
        digests={"charge density": digest(file(where, "out/si8.save/charge-density.dat"))},
    )


def lammps(where: Path, output: str) -> Result:
    """The last row of the thermodynamic table, and positions and velocities at the end."""
    log = text_of(where, "log.lammps")
    head = last(r"^\s*(Step\s.*)$", log, "table").split()
    rows = re.findall(rf"^\s*(\d+(?:\s+{NUMBER}){{{len(head) - 1}}})\s*$", log, re.MULTILINE)
    if not rows or "Total wall time" not in log:
        raise ResultError("the table in log.lammps is not complete")
    values = rows[-1][0].split()
    return Result(
        numbers={name: number(value) for name, value in zip(head, values, strict=True)},
        digests={"atoms": digest(file(where, "atoms.txt"))},
    )


def gromacs(where: Path, output: str) -> Result:
    """Energies of the last step in md.log, and the final positions."""
    log = text_of(where, "md.log")
    if "Finished mdrun" not in log:
        raise ResultError("no 'Finished mdrun' in md.log")
    blocks = re.findall(r"^\s+Energies \(kJ/mol\)\n((?:.*\S.*\n)+)", log.split("<======  ###")[0], re.MULTILINE)
    if not blocks:
        raise ResultError("no energies in md.log")
    lines = blocks[-1].splitlines()
    numbers: dict[str, float] = {}
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        found = [names[i : i + 15].strip() for i in range(0, len(names), 15)]
        numbers.update(zip(found, map(number, values.split()), strict=True))
    return Result(numbers=numbers, digests={"positions": digest(file(where, "confout.gro"))})


def nwchem(where: Path, output: str) -> Result:
    """Energies of Hartree-Fock or of density functional theory, and of MP2 where it was asked for."""
    if "Total times  cpu:" not in output:
        raise ResultError("NWChem has not reached its end")
    numbers = {"energy": number(last(rf"Total (?:SCF|DFT) energy =\s+{NUMBER}", output, "energy"))}
    found = re.findall(rf"Total MP2 energy\s+{NUMBER}", output)
    if found:
        numbers["MP2 energy"] = number(found[-1])
    return Result(numbers=numbers)


def cp2k(where: Path, output: str) -> Result:
    """The energy of the last step, and the positions of all steps."""
    if "PROGRAM ENDED AT" not in output:
        raise ResultError("no PROGRAM ENDED AT in the output")
    energy = last(rf"ENERGY\| Total FORCE_EVAL \( QS \) energy \[a\.u\.\]:\s+{NUMBER}", output, "energy")
    return Result(numbers={"energy": number(energy)}, digests={"positions": digest(file(where, "water-pos-1.xyz"))})


def named_values(where: Path, output: str) -> Result:
    """Our own programs print `name = value`, floating point numbers with float.hex()."""
    found = dict(re.findall(r"^result: (.+?) = (\S+)$", output, re.MULTILINE))
    if not found:
        raise ResultError("no line 'result: name = value' in the output")
    numbers = {name: float.fromhex(value) for name, value in found.items() if "0x" in value}
    return Result(numbers=numbers, texts={name: value for name, value in found.items() if name not in numbers})


def mumps(where: Path, output: str) -> Result:
    """The solution of the test driver: its sums and all its digits."""
    solution = last(r"Solution is\s*:?\s*((?:.*\d.*\n?)+)", output, "solution")
    values = [number(value) for value in re.findall(NUMBER, solution)]
    sums = {"values": float(len(values)), "sum": math.fsum(values), "squares": math.fsum(x * x for x in values)}
    return Result(numbers=sums, digests={"solution": digest(repr(values).encode())})


def scalapack(where: Path, output: str) -> Result:
    """How many tests have passed, failed and were left out, and the residuals of each."""
    counts = {}
    for what in ("completed and passed", "completed and failed", "skipped because of illegal"):
        counts[what] = last(rf"^\s*(\d+)\s+tests {what}", output, f"number of tests {what}")
    return Result(texts=counts)


def hpcc(where: Path, output: str) -> Result:
    """The checks of HPC Challenge; its other results are times."""
    report = text_of(where, "hpccoutf.txt")
    found = dict(re.findall(r"^(\w+)=(\S+)$", report, re.MULTILINE))
    if found.get("Success") != "1":
        raise ResultError("no Success=1 in hpccoutf.txt")
    names = [name for name in found if re.search(r"(residue|ErrorsFraction|maxErr|minEps|_N$|HPL_N[BPQ]?$)", name)]
    passed = re.findall(r"\b(PASSED|FAILED)\b", report)
    return Result(
        numbers={name: number(found[name]) for name in names if re.fullmatch(NUMBER, found[name])},
        texts={"checks": f"{passed.count('PASSED')} passed, {passed.count('FAILED')} failed"},
    )


def imb(where: Path, output: str) -> Result:
    """Which benchmarks were run with which sizes: the results themselves are times."""
    if "All processes entering MPI_Finalize" not in output:
        raise ResultError("IMB has not reached its end")
    benchmarks = list(dict.fromkeys(re.findall(r"^# Benchmarking (\S+)", output, re.MULTILINE)))
    return Result(texts={"benchmarks": " ".join(benchmarks)})
