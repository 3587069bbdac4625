"""What commands of several rooms use: arguments, quantities, names of jobs, output, the terminal, Ctrl-C, checks."""
