#!/bin/bash
#SBATCH --ntasks=4 --time=60 --output=out.txt
# The script runs again in each allocation. A new build may differ, and a checkpoint continues only the old one.
[ -x heat ] || mpicc -O2 -o heat heat.c
srun --mpi=pmi2 manapy-launch ./heat 50000000
