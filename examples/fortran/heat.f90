! Heat in a rod whose ends stay at 1 and 0. Usage: heat STEPS
program heat
  use mpi
  implicit none
  integer, parameter :: cells = 100000 ! of each rank
  double precision :: u(0:cells + 1), total, here ! with a border on each side
  integer :: rank, ranks, left, right, step, steps, error
  character(len=20) :: text

  call get_command_argument(1, text)
  read (text, *) steps
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
  right = merge(rank + 1, MPI_PROC_NULL, rank < ranks - 1)
  u = 0
  if (rank == 0) u(0) = 1

  do step = 1, steps
    call MPI_Sendrecv(u(1), 1, MPI_DOUBLE_PRECISION, left, 0, u(cells + 1), 1, MPI_DOUBLE_PRECISION, right, 0, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    call MPI_Sendrecv(u(cells), 1, MPI_DOUBLE_PRECISION, right, 0, u(0), 1, MPI_DOUBLE_PRECISION, left, 0, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    u(1:cells) = u(1:cells) + 0.4d0 * (u(2:cells + 1) - 2 * u(1:cells) + u(0:cells - 1))
    if (mod(step, steps / 20) == 0) then
      here = sum(u(1:cells))
      call MPI_Reduce(here, total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, 0, MPI_COMM_WORLD, error)
      if (rank == 0) print '(a, i0, a, f0.12)', 'step ', step, ' heat ', total
      flush (6)
    end if
  end do
  call MPI_Finalize(error)
end program heat
