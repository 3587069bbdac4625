"""Small inputs of the applications, written into the directory of a run. Natively each takes a few seconds."""

from __future__ import annotations

import subprocess
from pathlib import Path

PATIENCE = 120.0  # seconds for a tool that prepares an input

# Eight atoms of silicon in the cubic cell, with one displaced, so that there are forces.
SI8 = """\
&control
  calculation = 'scf', prefix = 'si8', outdir = './out', pseudo_dir = '/usr/share/espresso/pseudo'
  tprnfor = .true., tstress = .true.
/
&system
  ibrav = 1, celldm(1) = 10.20, nat = 8, ntyp = 1, ecutwfc = 20.0
/
&electrons
  conv_thr = 1.0d-9, mixing_beta = 0.5
/
ATOMIC_SPECIES
  Si 28.086 Si.pz-vbc.UPF
ATOMIC_POSITIONS alat
  Si 0.01 0.00 0.00
  Si 0.00 0.50 0.50
  Si 0.50 0.00 0.50
  Si 0.50 0.50 0.00
  Si 0.25 0.25 0.25
  Si 0.25 0.75 0.75
  Si 0.75 0.25 0.75
  Si 0.75 0.75 0.25
K_POINTS automatic
  1 1 1 1 1 1
"""

# A Lennard-Jones liquid. Energy and momentum are summed over the ranks; the forces are not.
LENNARD_JONES = """\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 6 0 6 0 6
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 5 check yes
fix 1 all nve
thermo 50
thermo_modify format float %.15g
run {steps}
write_dump all custom atoms.txt id x y z vx vy vz modify sort id format float %.17g
"""

TOPOLOGY = """\
#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spce.itp"
[ system ]
water
[ molecules ]
SOL {molecules}
"""
MOLECULAR_DYNAMICS = """\
integrator = md
dt = 0.002
nsteps = {steps}
nstenergy = 100
nstlog = 100
cutoff-scheme = Verlet
coulombtype = PME
rcoulomb = 0.9
rvdw = 0.9
tcoupl = v-rescale
tc-grps = System
tau-t = 0.1
ref-t = 300
gen-vel = yes
gen-temp = 300
gen-seed = 7
ld-seed = 7
constraints = h-bonds
"""

WATER_SCF = """\
start water
memory 400 mb
geometry units angstroms noautosym
  O  0.0000  0.0000  0.1173
  H  0.0000  0.7572 -0.4692
  H  0.0000 -0.7572 -0.4692
end
basis spherical
  * library {basis}
end
scf
  direct
  thresh 1e-8
end
task scf energy
task mp2 energy
"""

POISSON = '''\
"""Solve the Poisson equation on a square with conjugate gradients, as often as asked."""

import sys

import petsc4py

petsc4py.init(["poisson", "-ksp_type", "cg", "-pc_type", "bjacobi", "-ksp_rtol", "1e-10"])
from petsc4py import PETSc

n, times = int(sys.argv[1]), int(sys.argv[2])
da = PETSc.DMDA().create([n, n], stencil_width=1)
a, x, b = da.createMatrix(), da.createGlobalVec(), da.createGlobalVec()
(x0, x1), (y0, y1) = da.getRanges()
row, column = PETSc.Mat.Stencil(), PETSc.Mat.Stencil()
for j in range(y0, y1):
    for i in range(x0, x1):
        row.index = (i, j)
        for di, dj, value in ((0, 0, 4.0), (-1, 0, -1.0), (1, 0, -1.0), (0, -1, -1.0), (0, 1, -1.0)):
            if 0 <= i + di < n and 0 <= j + dj < n:
                column.index = (i + di, j + dj)
                a.setValueStencil(row, column, value)
a.assemble()
ksp = PETSc.KSP().create()
ksp.setOperators(a)
ksp.setFromOptions()
for k in range(times):
    b.set(1.0 + k)
    ksp.solve(b, x)
    if k % 10 == 9 or k == times - 1:
        PETSc.Sys.Print(f"result: iterations {k} = {ksp.getIterationNumber()}")
        PETSc.Sys.Print(f"result: norm {k} = {x.norm().hex()}", flush=True)
'''

RING = '''\
"""The modes of a dielectric ring in two dimensions, by Meep: fields, losses and the light that leaves it."""

import meep as mp

ring = [mp.Cylinder(2, material=mp.Medium(epsilon=11.7)), mp.Cylinder(1, material=mp.air)]
source = mp.Source(mp.GaussianSource(0.15, fwidth=0.1), component=mp.Ez, center=mp.Vector3(1.5, 0.2))
simulation = mp.Simulation(mp.Vector3(12, 12), 24, geometry=ring, sources=[source], boundary_layers=[mp.PML(1)])
modes = mp.Harminv(mp.Ez, mp.Vector3(1.5), 0.15, 0.1)
flux = simulation.add_flux(0.15, 0.1, 20, mp.FluxRegion(center=mp.Vector3(4), size=mp.Vector3(0, 8)))


def show(name, *values):
    if mp.am_master():
        for number, value in enumerate(values):
            print(f"result: {name} {number} = {float(value).hex()}", flush=True)


def field(simulation):
    found = simulation.get_array(component=mp.Ez, center=mp.Vector3(), size=mp.Vector3(10, 10))
    show(f"field {simulation.meep_time():.0f}", found.sum(), (found**2).sum())


simulation.run(mp.at_every(20, field), mp.after_sources(modes), until=300)
show("flux", *mp.get_fluxes(flux))
show("mode", *(value for mode in modes.modes for value in (mode.freq, mode.decay, mode.Q)))
'''

GPAW_WATER = '''\
"""A water molecule on a grid that is divided between the ranks, by GPAW. A line per step of the cycle."""

from ase.build import molecule
from gpaw import GPAW
from gpaw.mpi import world

water = molecule("H2O")
water.center(vacuum=3.0)
water.calc = GPAW(mode="fd", h=0.19, nbands=6, txt="-", parallel={"domain": world.size}, convergence={"density": 1e-6})
energy, forces = water.get_potential_energy(), water.get_forces()
if world.rank == 0:
    print(f"result: ranks = {world.size}")
    for number, value in enumerate([energy, *forces.ravel()]):
        print(f"result: energy and forces {number} = {float(value).hex()}")
'''

# One water molecule. The positions of each step depend on sums over the ranks.
WATER = """\
&GLOBAL
  PROJECT water
  RUN_TYPE MD
  PRINT_LEVEL LOW
&END GLOBAL
&MOTION
  &MD
    ENSEMBLE NVE
    STEPS 8
    TIMESTEP 0.5
    TEMPERATURE 300
  &END MD
&END MOTION
&FORCE_EVAL
  METHOD Quickstep
  &DFT
    BASIS_SET_FILE_NAME /usr/share/cp2k/BASIS_SET
    POTENTIAL_FILE_NAME /usr/share/cp2k/GTH_POTENTIALS
    &MGRID
      CUTOFF 100
    &END MGRID
    &SCF
      EPS_SCF 1.0E-7
      SCF_GUESS ATOMIC
    &END SCF
    &XC
      &XC_FUNCTIONAL PADE
      &END XC_FUNCTIONAL
    &END XC
  &END DFT
  &SUBSYS
    &CELL
      ABC 5.0 5.0 5.0
    &END CELL
    &COORD
      O 0.000 0.000 0.000
      H 0.757 0.586 0.000
      H -0.757 0.586 0.000
    &END COORD
    &KIND H
      BASIS_SET DZVP-GTH-PADE
      POTENTIAL GTH-PADE-q1
    &END KIND
    &KIND O
      BASIS_SET DZVP-GTH-PADE
      POTENTIAL GTH-PADE-q6
    &END KIND
  &END SUBSYS
&END FORCE_EVAL
"""

FIELDS = '''\
"""Write fields into one HDF5 file by all ranks together, and read back what other ranks have written."""

import sys

import h5py
import numpy
from mpi4py import MPI

world, (rows, times) = MPI.COMM_WORLD, map(int, sys.argv[1:])
begin = world.rank * rows
cells = numpy.arange(100 * begin, 100 * (begin + rows))
other = (world.rank + 1) % world.size * rows
with h5py.File("fields.h5", "w", driver="mpio", comm=world) as file:
    fields = file.create_dataset("fields", (times, world.size * rows, 100), "f8")
    for k in range(times):
        with fields.collective:
            fields[k, begin : begin + rows] = numpy.sin(k + cells).reshape(rows, 100)
        file.flush()
        world.Barrier()
        total = world.allreduce(float(fields[k, other : other + rows].sum()))
        if world.rank == 0 and k % 10 == 9:
            print(f"result: sum {k} = {total.hex()}", flush=True)
'''


def _write(where: Path, **files: str) -> None:
    for name, text in files.items():
        (where / name.replace("__", ".")).write_text(text)


def silicon(where: Path) -> None:
    """Eight atoms of silicon."""
    _write(where, si8__in=SI8)


def lennard_jones(where: Path, steps: int = 2500) -> None:
    """A Lennard-Jones liquid of 864 atoms."""
    _write(where, in__lj=LENNARD_JONES.format(steps=steps))


def water_box(where: Path, steps: int = 2000) -> None:
    """A box of water, made with gmx solvate and gmx grompp."""
    _gmx(where, "solvate", "-cs", "spc216", "-box", "2.0", "2.0", "2.0", "-o", "box.gro")
    molecules = sum(" OW" in line or "SOL     OW" in line for line in (where / "box.gro").read_text().splitlines())
    _write(where, topol__top=TOPOLOGY.format(molecules=molecules), md__mdp=MOLECULAR_DYNAMICS.format(steps=steps))
    _gmx(where, "grompp", "-f", "md.mdp", "-c", "box.gro", "-p", "topol.top", "-o", "topol.tpr", "-maxwarn", "2")


def _gmx(where: Path, *arguments: str) -> None:
    command = ["gmx", "-quiet", *arguments]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-400:]}")


def water_molecules(where: Path) -> None:
    """Hartree-Fock and MP2 of a molecule of water."""
    _write(where, water__nw=WATER_SCF.format(basis="cc-pvdz"))


def poisson(where: Path) -> None:
    """A program for petsc4py."""
    _write(where, **{"poisson.py": POISSON})


def ring(where: Path) -> None:
    """A program for Meep."""
    _write(where, ring__py=RING)


def water_for_gpaw(where: Path) -> None:
    """A program for GPAW."""
    _write(where, water__py=GPAW_WATER)


def water_for_cp2k(where: Path) -> None:
    """A water molecule for molecular dynamics by density functional theory."""
    _write(where, water__inp=WATER)


def fields(where: Path) -> None:
    """A program for h5py."""
    _write(where, fields__py=FIELDS)


def matrix_for_mumps(where: Path, side: int = 250) -> None:
    """The Laplace operator on a square, and a right-hand side, in the format of MUMPS' own example."""
    n = side * side
    entries = [f"{k} {k} 4.0" for k in range(1, n + 1)]
    for k in range(1, n + 1):
        for neighbour, is_one in ((k + 1, k % side), (k + side, k + side <= n)):
            if is_one:
                entries += [f"{k} {neighbour} -1.0", f"{neighbour} {k} -1.0"]
    right = [f"{1 + k % 7}.0" for k in range(n)]
    _write(where, input="\n".join([f"{n} :N", f"{len(entries)} :NZ", *entries, *right]) + "\n")


def matrices_for_scalapack(where: Path) -> None:
    """LU decompositions of several matrices on two processes. Without the tests of condition estimates: there Debian's
    xdlu passes a wrong argument to PDGETRS in some runs, and then hangs, without manapy, too."""
    _write(where, **{"LU.dat": LU})


LU = """\
'ScaLAPACK LU factorization input file'
'MPI machine.'
'LU.out'                output file name (if any)
6                       device out
3                       number of problems sizes
300 400 500             values of M
300 400 500             values of N
1                       number of NB's
16                      values of NB
1                       number of NRHS's
3                       values of NRHS
1                       number of NBRHS's
3                       values of NBRHS
2                       number of process grids (ordered pairs of P & Q)
1 2                     values of P
2 1                     values of Q
1.0                     threshold
F                       (T or F) Test Cond. Est. and Iter. Ref. Routines
"""


def challenge(where: Path) -> None:
    """HPC Challenge, small."""
    _write(where, hpccinf__txt=HPCC)


HPCC = """\
HPLinpack benchmark input file
Innovative Computing Laboratory, University of Tennessee
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
500          Ns
1            # of NBs
64           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
1            Ps
2            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0                      Number of additional problem sizes for PTRANS
1200 10000 30000       values of N
0                      number of additional blocking sizes for PTRANS
40 9 8 13 13 20 16 32 64       values of NB
"""


def nothing(where: Path) -> None:
    """No input."""


def intel_program(name: str) -> str:
    """One of Intel's benchmarks, where `manapy bench` keeps them. `manapy bench` or pip downloads them."""
    from manapy.bench.calls import imb
    from manapy.bench.shared.packages import cache

    return str(cache(imb.PACKAGE) / name)


def newest(pattern: str) -> str:
    """The last path that matches an absolute pattern; an empty text if there is none."""
    return max(map(str, Path("/").glob(pattern.lstrip("/"))), default="")
