! MPI in a program unit of Fortran: the module, or with MPIFH the older header.
#ifndef MPIFH
  use mpi
  implicit none
#else
  implicit none
  include 'mpif.h'
#endif
