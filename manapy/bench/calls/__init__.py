"""Jobs about MPI calls and whole programs: latency, run time, start of a job, the Intel MPI Benchmarks."""
