#!/bin/bash
#SBATCH --ntasks=4 --time=60 --output=out.txt
mpicc -O2 -o heat heat.c
srun --mpi=pmi2 manapy-launch ./heat 50000000
