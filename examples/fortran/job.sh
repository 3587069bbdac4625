#!/bin/bash
#SBATCH --ntasks=4 --time=60 --output=out.txt
mpifort -O2 -o heat heat.f90
srun --mpi=pmi2 manapy-launch ./heat 50000000
