! MPI from Fortran 2008 (use mpi_f08) over a checkpoint and restart: test_languages.py.
program fortran_f08
  use mpi_f08
  use, intrinsic :: iso_c_binding
  implicit none
  integer :: rank, size, next, before, keyval, i, got, handled = 0, failures = 0, deleted = 0, released = 0
  integer(MPI_ADDRESS_KIND) :: value, found, extra = 7
  integer, asynchronous :: received = -1
  logical :: flag
  type(MPI_Comm) :: comm, copy, ring
  type(MPI_Datatype) :: column, absolute
  type(MPI_Group) :: group
  type(MPI_Info) :: info
  type(MPI_Op) :: op
  type(MPI_Request) :: request
  type(MPI_Status) :: status
  type(MPI_Errhandler) :: handler
  type(MPI_Win) :: window
  type(MPI_File) :: file
  type(MPI_Request) :: general
  type(MPI_Datatype) :: types(3)
  integer :: a(3), b(3), matrix(4, 4), column_in(4), weights(1), out_weights(1), none(0)
  integer(MPI_ADDRESS_KIND) :: address
  character(len=20) :: text
  character(len=1024) :: go

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size)
  next = mod(rank + 1, size)
  before = mod(rank + size - 1, size)

  call MPI_Comm_dup(MPI_COMM_WORLD, comm)
  call MPI_Comm_create_keyval(on_copy, on_delete, keyval, extra)
  value = 1234567890123_MPI_ADDRESS_KIND
  call MPI_Comm_set_attr(comm, keyval, value)
  call MPI_Comm_create_errhandler(on_error, handler)
  call MPI_Comm_set_errhandler(comm, handler)
  call MPI_Errhandler_free(handler)
  call MPI_Op_create(add, .true., op)
  call MPI_Type_vector(4, 1, 4, MPI_INTEGER, column)
  call MPI_Type_commit(column)
  call MPI_Comm_group(comm, group)
  call MPI_Info_create(info)
  call MPI_Info_set(info, 'language', 'Fortran')
  call MPI_Win_create(column_in, 16_MPI_ADDRESS_KIND, 4, MPI_INFO_NULL, comm, window)
  call MPI_Irecv(received, 1, MPI_INTEGER, before, 5, comm, request)
  call MPI_Grequest_start(query, release, cancel, extra, general)
  call MPI_File_open(comm, 'fortran.data', MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file)
  call MPI_File_create_errhandler(on_file_error, handler)
  call MPI_File_set_errhandler(file, handler)
  call MPI_File_write_at_all(file, int(4 * rank, MPI_OFFSET_KIND), rank, 1, MPI_INTEGER, MPI_STATUS_IGNORE)

  call get_environment_variable('STATE_GO', go)
  print '(a)', 'ready'
  flush (6)
  do
    inquire (file=trim(go), exist=flag)
    if (flag) exit
    call sleep_a_little()
  end do

  call MPI_Send(rank, 1, MPI_INTEGER, next, 5, comm)
  call MPI_Wait(request, status)
  call check(received == before .and. status%MPI_SOURCE == before .and. status%MPI_TAG == 5, 'request')
  a = [rank, 2 * rank, 3]
  call MPI_Allreduce(a, b, 3, MPI_INTEGER, op, comm)
  call check(all(b == [size * (size - 1) / 2, size * (size - 1), 3 * size]), 'operation')
  call MPI_Allreduce(MPI_IN_PLACE, a, 3, MPI_INTEGER, MPI_SUM, comm)
  call check(all(a == b), 'in place')
  matrix = rank
  call MPI_Sendrecv(matrix(2, 1), 1, column, next, 6, column_in, 4, MPI_INTEGER, before, 6, comm, MPI_STATUS_IGNORE)
  call check(all(column_in == before), 'datatype')
  call MPI_Group_rank(group, i)
  call check(i == rank, 'group')
  call MPI_Info_get(info, 'language', 20, text, flag)
  call check(flag .and. text == 'Fortran', 'info')
  call MPI_Comm_get_attr(comm, keyval, found, flag)
  call check(flag .and. found == value, 'attribute')
  call MPI_Comm_dup(comm, copy)
  call MPI_Comm_get_attr(copy, keyval, found, flag)
  call check(flag .and. found == value + extra, 'copied attribute')
  call MPI_Comm_free(copy)
  call check(deleted == 1, 'deleted attribute')
  call MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, found, flag)
  call check(flag .and. found >= 32767, 'predefined attribute')
  call MPI_Win_get_attr(window, MPI_WIN_SIZE, found, flag)
  call check(flag .and. found == 16, 'size of a window')
  call MPI_Win_get_attr(window, MPI_WIN_DISP_UNIT, found, flag)
  call check(flag .and. found == 4, 'unit of a window')
  call MPI_Win_free(window)
  call MPI_Send(rank, 1, MPI_INTEGER, size + 1, 0, comm, i)
  call check(handled == 1, 'error handler')
  call MPI_File_sync(file)
  call MPI_Barrier(comm)
  call MPI_File_sync(file)
  call MPI_File_read_at(file, int(4 * next, MPI_OFFSET_KIND), got, 1, MPI_INTEGER, status)
  call MPI_Get_count(status, MPI_INTEGER, i)
  call check(got == next .and. i == 1, 'file')
  call MPI_File_call_errhandler(file, MPI_ERR_IO)
  call check(handled == 101, 'error handler of a file')
  call MPI_File_close(file)
  call check(file == MPI_FILE_NULL, 'closed file')
  types = MPI_INTEGER
  a = rank
  call MPI_Alltoallw(a, [1, 1, 1], [0, 4, 8], types, b, [1, 1, 1], [0, 4, 8], types, comm)
  call check(all(b == [0, 1, 2]), 'alltoallw')
  call MPI_Grequest_complete(general)
  call MPI_Wait(general, status)
  call check(status%MPI_TAG == 77 .and. released == 1, 'generalized request')
  call check(general == MPI_REQUEST_NULL, 'complete request')
  call MPI_Status_set_elements(status, MPI_INTEGER, 3)
  call MPI_Get_count(status, MPI_INTEGER, got)
  call check(got == 3, 'status')
  call MPI_Dist_graph_create_adjacent(comm, 1, [before], MPI_UNWEIGHTED, 1, [next], MPI_UNWEIGHTED, MPI_INFO_NULL, &
                                      .false., ring)
  call MPI_Dist_graph_neighbors_count(ring, i, got, flag)
  call check(i == 1 .and. got == 1 .and. .not. flag, 'graph without weights')
  call MPI_Dist_graph_neighbors(ring, 1, a, MPI_UNWEIGHTED, 1, b, MPI_UNWEIGHTED)
  call check(a(1) == before .and. b(1) == next, 'neighbors without weights')
  call MPI_Comm_free(ring)
  call MPI_Dist_graph_create(comm, 1, [rank], [1], [next], MPI_UNWEIGHTED, MPI_INFO_NULL, .false., ring)
  call MPI_Dist_graph_neighbors_count(ring, i, got, flag)
  call check(i == 1 .and. got == 1 .and. .not. flag, 'distributed graph without weights')
  call MPI_Comm_free(ring)
  if (rank == 0) then
    call MPI_Dist_graph_create_adjacent(comm, 0, none, MPI_WEIGHTS_EMPTY, 1, [next], [5], MPI_INFO_NULL, .false., ring)
  else if (rank == 1) then
    call MPI_Dist_graph_create_adjacent(comm, 1, [before], [5], 0, none, MPI_WEIGHTS_EMPTY, MPI_INFO_NULL, &
                                        .false., ring)
  else
    call MPI_Dist_graph_create_adjacent(comm, 0, none, MPI_WEIGHTS_EMPTY, 0, none, MPI_WEIGHTS_EMPTY, MPI_INFO_NULL, &
                                        .false., ring)
  end if
  call MPI_Dist_graph_neighbors_count(ring, i, got, flag)
  call check(flag .and. i + got == merge(1, 0, rank < 2), 'graph with weights')
  weights = 5
  out_weights = 5
  call MPI_Dist_graph_neighbors(ring, i, a, weights, got, b, out_weights)
  call check(weights(1) == 5 .and. out_weights(1) == 5, 'weights')
  call MPI_Comm_free(ring)
  call MPI_Get_address(a, address)
  call MPI_Type_create_hindexed_block(1, 3, [address], MPI_INTEGER, absolute)
  call MPI_Type_commit(absolute)
  a = rank
  call MPI_Sendrecv(MPI_BOTTOM, 1, absolute, next, 8, b, 3, MPI_INTEGER, before, 8, comm, MPI_STATUS_IGNORE)
  call check(all(b == before), 'bottom')
  call MPI_Type_free(absolute)
  call MPI_Op_free(op)
  call MPI_Type_free(column)
  call MPI_Group_free(group)
  call MPI_Info_free(info)
  call MPI_Comm_free_keyval(keyval)
  call MPI_Comm_free(comm)
  if (failures == 0) print '(a)', 'ok'
  call MPI_Finalize()

contains

  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(len=*), intent(in) :: what
    if (condition) return
    failures = failures + 1
    print '(2a)', 'FAILED ', what
  end subroutine

  subroutine sleep_a_little()
    interface
      function usleep(us) bind(c) result(r)
        import c_int
        integer(c_int), value :: us
        integer(c_int) :: r
      end function
    end interface
    integer(c_int) :: ignored
    ignored = usleep(10000_c_int)
  end subroutine

  subroutine on_copy(c, k, ex, in, out, copied, ierror)
    type(MPI_Comm) :: c
    integer :: k, ierror
    integer(MPI_ADDRESS_KIND) :: ex, in, out
    logical :: copied
    out = in + ex
    copied = .true.
    ierror = MPI_SUCCESS
    if (c%MPI_VAL == 0 .or. k == 0) ierror = 1
  end subroutine

  subroutine on_delete(c, k, in, ex, ierror)
    type(MPI_Comm) :: c
    integer :: k, ierror
    integer(MPI_ADDRESS_KIND) :: in, ex
    deleted = deleted + 1
    ierror = MPI_SUCCESS
    if (c%MPI_VAL == 0 .or. k == 0 .or. ex /= 7 .or. in == 0) ierror = 1
  end subroutine

  subroutine on_error(c, code)
    type(MPI_Comm) :: c
    integer :: code, class
    call MPI_Error_class(code, class)
    if (class == MPI_ERR_RANK .and. c == comm) handled = handled + 1
  end subroutine

  subroutine on_file_error(f, code)
    type(MPI_File) :: f ! in MPICH 4.0 another handle
    integer :: code, class
    call MPI_Error_class(code, class)
    if (class == MPI_ERR_IO) handled = handled + 100
  end subroutine

  subroutine query(ex, s, ierror)
    integer(MPI_ADDRESS_KIND) :: ex
    type(MPI_Status) :: s
    integer :: ierror
    call MPI_Status_set_elements(s, MPI_INTEGER, 1)
    call MPI_Status_set_cancelled(s, .false.)
    s%MPI_TAG = int(70 + ex)
    ierror = MPI_SUCCESS
  end subroutine

  subroutine release(ex, ierror)
    integer(MPI_ADDRESS_KIND) :: ex
    integer :: ierror
    if (ex == 7) released = released + 1
    ierror = MPI_SUCCESS
  end subroutine

  subroutine cancel(ex, complete, ierror)
    integer(MPI_ADDRESS_KIND) :: ex
    logical :: complete
    integer :: ierror
    ierror = MPI_SUCCESS
    if (ex /= 7 .or. complete) ierror = MPI_ERR_OTHER
  end subroutine

  subroutine add(in, inout, length, type)
    type(c_ptr), value :: in, inout
    integer :: length
    type(MPI_Datatype) :: type
    integer, pointer :: x(:), y(:)
    call c_f_pointer(in, x, [length])
    call c_f_pointer(inout, y, [length])
    if (type == MPI_INTEGER) y = y + x
  end subroutine
end program
