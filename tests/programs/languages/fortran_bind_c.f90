! MPI of the standard ABI (MPI-5 20) from Fortran by its C interface: handles are addresses (c_intptr_t), constants have
! the values of mpi_abi.h, over a checkpoint and restart. test_languages.py.
module c_interface
  use iso_c_binding, only: c_int, c_intptr_t, c_ptr, c_funptr, c_double
  implicit none
  integer(c_intptr_t), parameter :: MPI_COMM_WORLD = int(z'101', c_intptr_t), MPI_INTEGER = int(z'219', c_intptr_t)
  integer(c_intptr_t), parameter :: MPI_DOUBLE_PRECISION = int(z'21c', c_intptr_t)
  integer(c_intptr_t), parameter :: MPI_REQUEST_NULL = int(z'180', c_intptr_t)
  type, bind(C) :: status_t
    integer(c_int) :: source, tag, error, internal(5)
  end type
  interface
    integer(c_int) function MPI_Init(argc, argv) bind(C, name='MPI_Init')
      import
      type(c_ptr), value :: argc, argv
    end function
    integer(c_int) function MPI_Finalize() bind(C, name='MPI_Finalize')
      import
    end function
    integer(c_int) function MPI_Comm_rank(comm, rank) bind(C, name='MPI_Comm_rank')
      import
      integer(c_intptr_t), value :: comm
      integer(c_int) :: rank
    end function
    integer(c_int) function MPI_Comm_size(comm, size) bind(C, name='MPI_Comm_size')
      import
      integer(c_intptr_t), value :: comm
      integer(c_int) :: size
    end function
    integer(c_int) function MPI_Comm_dup(comm, made) bind(C, name='MPI_Comm_dup')
      import
      integer(c_intptr_t), value :: comm
      integer(c_intptr_t) :: made
    end function
    integer(c_int) function MPI_Comm_toint(comm) bind(C, name='MPI_Comm_toint')
      import
      integer(c_intptr_t), value :: comm
    end function
    integer(c_intptr_t) function MPI_Comm_fromint(number) bind(C, name='MPI_Comm_fromint')
      import
      integer(c_int), value :: number
    end function
    integer(c_int) function MPI_Type_vector(count, length, stride, old, made) bind(C, name='MPI_Type_vector')
      import
      integer(c_int), value :: count, length, stride
      integer(c_intptr_t), value :: old
      integer(c_intptr_t) :: made
    end function
    integer(c_int) function MPI_Type_commit(datatype) bind(C, name='MPI_Type_commit')
      import
      integer(c_intptr_t) :: datatype
    end function
    integer(c_int) function MPI_Op_create(function, commute, op) bind(C, name='MPI_Op_create')
      import
      type(c_funptr), value :: function
      integer(c_int), value :: commute
      integer(c_intptr_t) :: op
    end function
    integer(c_int) function MPI_Allreduce(from, to, count, datatype, op, comm) bind(C, name='MPI_Allreduce')
      import
      real(c_double) :: from(*), to(*)
      integer(c_int), value :: count
      integer(c_intptr_t), value :: datatype, op, comm
    end function
    integer(c_int) function MPI_Send(buffer, count, datatype, to, tag, comm) bind(C, name='MPI_Send')
      import
      integer(c_int) :: buffer(*)
      integer(c_int), value :: count, to, tag
      integer(c_intptr_t), value :: datatype, comm
    end function
    integer(c_int) function MPI_Irecv(buffer, count, datatype, from, tag, comm, request) bind(C, name='MPI_Irecv')
      import
      type(c_ptr), value :: buffer
      integer(c_int), value :: count, from, tag
      integer(c_intptr_t), value :: datatype, comm
      integer(c_intptr_t) :: request
    end function
    integer(c_int) function MPI_Wait(request, status) bind(C, name='MPI_Wait')
      import
      integer(c_intptr_t) :: request
      type(status_t) :: status
    end function
    integer(c_int) function MPI_Get_count(status, datatype, count) bind(C, name='MPI_Get_count')
      import
      type(status_t) :: status
      integer(c_intptr_t), value :: datatype
      integer(c_int) :: count
    end function
  end interface
end module

module operation
  use c_interface
  implicit none
contains
  subroutine larger(in, inout, length, datatype) bind(C)
    integer(c_int) :: length
    integer(c_intptr_t) :: datatype
    real(c_double) :: in(length), inout(length)
    if (datatype == MPI_DOUBLE_PRECISION) inout = max(in, inout)
  end subroutine
end module

program fortran_bind_c
  use iso_c_binding, only: c_null_ptr, c_loc, c_funloc
  use c_interface
  use operation
  implicit none
  integer(c_int) :: rank, size, next, before, rc, number, count, matrix(4, 4)
  integer(c_int), target :: column(4)
  integer(c_intptr_t) :: comm, vector, op, request
  type(status_t) :: status
  real(c_double) :: one(1), all_of_them(1)
  logical :: is_there, good
  character(len=1024) :: go

  rc = MPI_Init(c_null_ptr, c_null_ptr)
  rc = MPI_Comm_rank(MPI_COMM_WORLD, rank)
  rc = MPI_Comm_size(MPI_COMM_WORLD, size)
  next = mod(rank + 1, size)
  before = mod(rank + size - 1, size)
  rc = MPI_Comm_dup(MPI_COMM_WORLD, comm)
  number = MPI_Comm_toint(comm)
  rc = MPI_Type_vector(4, 1, 4, MPI_INTEGER, vector)
  rc = MPI_Type_commit(vector)
  rc = MPI_Op_create(c_funloc(larger), 1, op)
  rc = MPI_Irecv(c_loc(column), 4, MPI_INTEGER, before, 5, comm, request)

  call get_environment_variable('STATE_GO', go)
  print '(a)', 'ready'
  flush (6)
  do
    inquire (file=trim(go), exist=is_there)
    if (is_there) exit
    call sleep(1)
  end do

  matrix = rank
  rc = MPI_Send(matrix, 1, vector, next, 5, MPI_Comm_fromint(number))
  rc = MPI_Wait(request, status)
  rc = MPI_Get_count(status, MPI_INTEGER, count)
  good = all(column == before) .and. status%source == before .and. status%tag == 5 .and. count == 4
  one = real(rank, c_double)
  rc = MPI_Allreduce(one, all_of_them, 1, MPI_DOUBLE_PRECISION, op, comm)
  good = good .and. all_of_them(1) == size - 1 .and. request == MPI_REQUEST_NULL .and. rc == 0
  print '(a)', merge('ok    ', 'FAILED', good)
  rc = MPI_Finalize()
end program
