"""Commands that start a job again or keep it going: restart, run, slurm."""
