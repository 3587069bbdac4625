#!/bin/bash
#SBATCH --ntasks=4 --time=60 --output=out.txt
srun --mpi=pmi2 manapy-launch python heat.py 20000000
