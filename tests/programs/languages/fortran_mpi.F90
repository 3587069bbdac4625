! MPI from Fortran with integer handles over a checkpoint and restart: test_languages.py. With MPIFH by mpif.h,
! else by "use mpi". Open MPI gives the error handler of a file its handle; MPICH 4.0 gives it another number.
program fortran_mpi
#include "declare_mpi.h"
  integer :: rank, size, next, before, keyval, old_keyval, i, ierror, comm, copy, column, group, info, op, request
  integer :: window, ring, absolute, sources(1), destinations(1), weights(1), out_weights(1), none(1)
  integer :: received, failures, requests(2), pair(2), simple, general
  integer :: released, handled, file, guarded, handler, file_handler, ones(3), offsets(3), types(3)
  common /callbacks/ released, handled
  integer(kind=MPI_OFFSET_KIND) :: place
  integer :: a(3), b(3), matrix(4, 4), column_in(4), status(MPI_STATUS_SIZE), statuses(MPI_STATUS_SIZE, 2)
  integer(kind=MPI_ADDRESS_KIND) :: value, found, extra, address, addresses(1)
  logical :: flag
  character(len=20) :: text
  character(len=1024) :: go
  external :: add, query, release, cancel, on_error, on_file_error

  failures = 0
  received = -1
  released = 0
  handled = 0
  call MPI_INIT(ierror)
  call MPI_COMM_RANK(MPI_COMM_WORLD, rank, ierror)
  call MPI_COMM_SIZE(MPI_COMM_WORLD, size, ierror)
  next = mod(rank + 1, size)
  before = mod(rank + size - 1, size)

  call MPI_COMM_DUP(MPI_COMM_WORLD, comm, ierror)
  extra = 7
  call MPI_COMM_CREATE_KEYVAL(MPI_COMM_DUP_FN, MPI_COMM_NULL_DELETE_FN, keyval, extra, ierror)
  value = 1234567890123_MPI_ADDRESS_KIND
  call MPI_COMM_SET_ATTR(comm, keyval, value, ierror)
  call MPI_KEYVAL_CREATE(MPI_NULL_COPY_FN, MPI_NULL_DELETE_FN, old_keyval, i, ierror)
  call MPI_ATTR_PUT(comm, old_keyval, -42, ierror)
  call MPI_OP_CREATE(add, .true., op, ierror)
  call MPI_TYPE_VECTOR(4, 1, 4, MPI_INTEGER, column, ierror)
  call MPI_TYPE_COMMIT(column, ierror)
  call MPI_COMM_GROUP(comm, group, ierror)
  call MPI_INFO_CREATE(info, ierror)
  call MPI_INFO_SET(info, 'language', 'Fortran', ierror)
  call MPI_COMM_SET_ERRHANDLER(comm, MPI_ERRORS_RETURN, ierror)
  call MPI_WIN_CREATE(column_in, 16_MPI_ADDRESS_KIND, 4, MPI_INFO_NULL, comm, window, ierror)
  call MPI_IRECV(received, 1, MPI_INTEGER, before, 5, comm, request, ierror)
  call MPI_GREQUEST_START(query, release, cancel, extra, general, ierror)
  call MPI_COMM_DUP(MPI_COMM_WORLD, guarded, ierror)
  call MPI_COMM_CREATE_ERRHANDLER(on_error, handler, ierror)
  call MPI_COMM_SET_ERRHANDLER(guarded, handler, ierror)
  call MPI_FILE_OPEN(comm, 'fortran.data', ior(MPI_MODE_CREATE, MPI_MODE_RDWR), MPI_INFO_NULL, file, ierror)
  call MPI_FILE_CREATE_ERRHANDLER(on_file_error, file_handler, ierror)
  call MPI_FILE_SET_ERRHANDLER(file, file_handler, ierror)
  place = 4 * rank
  call MPI_FILE_WRITE_AT_ALL(file, place, rank, 1, MPI_INTEGER, status, ierror)

  call get_environment_variable('STATE_GO', go)
  print '(a)', 'ready'
  flush (6)
  do
    inquire (file=trim(go), exist=flag)
    if (flag) exit
    call sleep(1)
  end do

  call MPI_SEND(rank, 1, MPI_INTEGER, next, 5, comm, ierror)
  call MPI_WAIT(request, status, ierror)
  call check(received == before .and. status(MPI_SOURCE) == before .and. status(MPI_TAG) == 5, 'request')
  call MPI_IRECV(pair(1), 1, MPI_INTEGER, before, 7, comm, requests(1), ierror)
  call MPI_ISEND(rank, 1, MPI_INTEGER, next, 7, comm, requests(2), ierror)
  call MPI_WAITALL(2, requests, statuses, ierror)
  call check(pair(1) == before .and. statuses(MPI_TAG, 1) == 7 .and. requests(1) == MPI_REQUEST_NULL, 'requests')
  call MPI_IRECV(pair(2), 1, MPI_INTEGER, before, 8, comm, requests(1), ierror)
  call MPI_ISEND(rank, 1, MPI_INTEGER, next, 8, comm, requests(2), ierror)
  call MPI_WAITALL(2, requests, MPI_STATUSES_IGNORE, ierror)
  call check(pair(2) == before, 'statuses ignored')
  a = (/ rank, 2 * rank, 3 /)
  call MPI_ALLREDUCE(a, b, 3, MPI_INTEGER, op, comm, ierror)
  call check(b(1) == size * (size - 1) / 2 .and. b(2) == 2 * b(1) .and. b(3) == 3 * size, 'operation')
  call MPI_ALLREDUCE(MPI_IN_PLACE, a, 3, MPI_INTEGER, MPI_SUM, comm, ierror)
  call check(all(a == b), 'in place')
  matrix = rank
  call MPI_SENDRECV(matrix(2, 1), 1, column, next, 6, column_in, 4, MPI_INTEGER, before, 6, comm, MPI_STATUS_IGNORE, &
                    ierror)
  call check(all(column_in == before), 'datatype')
  call MPI_GROUP_RANK(group, i, ierror)
  call check(i == rank, 'group')
  call MPI_INFO_GET(info, 'language', 20, text, flag, ierror)
  call check(flag .and. text == 'Fortran', 'info')
  call MPI_COMM_DUP(comm, copy, ierror)
  call MPI_COMM_GET_ATTR(copy, keyval, found, flag, ierror)
  call check(flag .and. found == value, 'copied attribute')
  call MPI_ATTR_GET(copy, old_keyval, simple, flag, ierror)
  call check(.not. flag, 'attribute that is not copied')
  call MPI_ATTR_GET(comm, old_keyval, simple, flag, ierror)
  call check(flag .and. simple == -42, 'old attribute')
  call MPI_COMM_FREE(copy, ierror)
  call MPI_COMM_GET_ATTR(MPI_COMM_WORLD, MPI_TAG_UB, found, flag, ierror)
  call check(flag .and. found >= 32767, 'predefined attribute')
  call MPI_WIN_GET_ATTR(window, MPI_WIN_BASE, found, flag, ierror)
  call MPI_GET_ADDRESS(column_in, address, ierror)
  call check(flag .and. found == address, 'base of a window')
  call MPI_WIN_GET_ATTR(window, MPI_WIN_CREATE_FLAVOR, found, flag, ierror)
  call check(flag .and. found == MPI_WIN_FLAVOR_CREATE, 'flavor of a window')
  call MPI_WIN_FREE(window, ierror)
  call MPI_SEND(rank, 1, MPI_INTEGER, size + 1, 0, comm, ierror)
  call MPI_ERROR_CLASS(ierror, i, ierror)
  call check(i == MPI_ERR_RANK, 'error')
  call MPI_SEND(rank, 1, MPI_INTEGER, size + 1, 0, guarded, ierror)
  call check(handled == 1, 'error handler')
  place = 4 * next
  call MPI_FILE_SYNC(file, ierror)
  call MPI_BARRIER(comm, ierror)
  call MPI_FILE_SYNC(file, ierror)
  call MPI_FILE_READ_AT(file, place, i, 1, MPI_INTEGER, status, ierror)
  call MPI_GET_COUNT(status, MPI_INTEGER, simple, ierror)
  call check(i == next .and. simple == 1, 'file')
  call MPI_FILE_CALL_ERRHANDLER(file, MPI_ERR_IO, ierror)
  call check(handled == 101, 'error handler of a file')
  call MPI_FILE_CLOSE(file, ierror)
  call check(file == MPI_FILE_NULL, 'closed file')
  ones = 1
  offsets = (/ 0, 4, 8 /)
  types = MPI_INTEGER
  a = rank
  call MPI_ALLTOALLW(a, ones, offsets, types, b, ones, offsets, types, comm, ierror)
  call check(all(b == (/ 0, 1, 2 /)), 'alltoallw')
  call MPI_ALLTOALLW(MPI_IN_PLACE, ones, ones, ones, b, ones, offsets, types, comm, ierror)
  call check(all(b == rank), 'alltoallw in place')
  call MPI_IALLTOALLW(a, ones, offsets, types, b, ones, offsets, types, comm, request, ierror)
  requests(1) = request
  call MPI_WAITANY(1, requests, i, status, ierror)
  call check(i == 1 .and. all(b == (/ 0, 1, 2 /)), 'nonblocking alltoallw, index')
  call MPI_TEST(general, flag, status, ierror)
  call check(.not. flag, 'generalized request that is not complete')
  call MPI_GREQUEST_COMPLETE(general, ierror)
  call MPI_WAIT(general, status, ierror)
  call check(status(MPI_TAG) == 77 .and. released == 1, 'generalized request')
  sources = before
  destinations = next
  call MPI_DIST_GRAPH_CREATE_ADJACENT(comm, 1, sources, MPI_UNWEIGHTED, 1, destinations, MPI_UNWEIGHTED, &
                                      MPI_INFO_NULL, .false., ring, ierror)
  call MPI_DIST_GRAPH_NEIGHBORS_COUNT(ring, i, simple, flag, ierror)
  call check(i == 1 .and. simple == 1 .and. .not. flag, 'graph without weights')
  call MPI_DIST_GRAPH_NEIGHBORS(ring, 1, sources, MPI_UNWEIGHTED, 1, destinations, MPI_UNWEIGHTED, ierror)
  call check(sources(1) == before .and. destinations(1) == next, 'neighbors without weights')
  call MPI_COMM_FREE(ring, ierror)
  weights = 5
  out_weights = 5
  if (rank == 0) then
    call MPI_DIST_GRAPH_CREATE_ADJACENT(comm, 0, none, MPI_WEIGHTS_EMPTY, 1, destinations, out_weights, MPI_INFO_NULL, &
                                        .false., ring, ierror)
  else if (rank == 1) then
    call MPI_DIST_GRAPH_CREATE_ADJACENT(comm, 1, sources, weights, 0, none, MPI_WEIGHTS_EMPTY, MPI_INFO_NULL, .false., &
                                        ring, ierror)
  else
    call MPI_DIST_GRAPH_CREATE_ADJACENT(comm, 0, none, MPI_WEIGHTS_EMPTY, 0, none, MPI_WEIGHTS_EMPTY, MPI_INFO_NULL, &
                                        .false., ring, ierror)
  end if
  call MPI_DIST_GRAPH_NEIGHBORS_COUNT(ring, i, simple, flag, ierror)
  call check(flag .and. i + simple == merge(1, 0, rank < 2), 'graph with weights')
  call MPI_DIST_GRAPH_NEIGHBORS(ring, i, sources, weights, simple, destinations, out_weights, ierror)
  call check(weights(1) == 5 .and. out_weights(1) == 5, 'weights')
  call MPI_COMM_FREE(ring, ierror)
  call MPI_GET_ADDRESS(a, addresses(1), ierror)
  call MPI_TYPE_CREATE_HINDEXED_BLOCK(1, 3, addresses, MPI_INTEGER, absolute, ierror)
  call MPI_TYPE_COMMIT(absolute, ierror)
  a = rank
  call MPI_SENDRECV(MPI_BOTTOM, 1, absolute, next, 9, b, 3, MPI_INTEGER, before, 9, comm, MPI_STATUS_IGNORE, ierror)
  call check(all(b == before), 'bottom')
  call MPI_TYPE_FREE(absolute, ierror)
  call MPI_OP_FREE(op, ierror)
  call MPI_TYPE_FREE(column, ierror)
  call MPI_GROUP_FREE(group, ierror)
  call MPI_INFO_FREE(info, ierror)
  call MPI_COMM_FREE(comm, ierror)
  if (failures == 0) print '(a)', 'ok'
  call MPI_FINALIZE(ierror)

contains

  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(len=*), intent(in) :: what
    if (condition) return
    failures = failures + 1
    print '(2a)', 'FAILED ', what
  end subroutine
end program

subroutine add(in, inout, length, type)
  implicit none
  integer :: length, type, in(length), inout(length)
  if (type /= 0) inout = inout + in
end subroutine

subroutine query(extra, status, ierror)
#include "declare_mpi.h"
  integer(kind=MPI_ADDRESS_KIND) :: extra
  integer :: status(MPI_STATUS_SIZE), ierror
  call MPI_STATUS_SET_ELEMENTS(status, MPI_INTEGER, 1, ierror)
  call MPI_STATUS_SET_CANCELLED(status, .false., ierror)
  status(MPI_TAG) = int(70 + extra)
  ierror = MPI_SUCCESS
end subroutine

subroutine release(extra, ierror)
#include "declare_mpi.h"
  integer(kind=MPI_ADDRESS_KIND) :: extra
  integer :: ierror, released, handled
  common /callbacks/ released, handled
  if (extra == 7) released = released + 1
  ierror = MPI_SUCCESS
end subroutine

subroutine cancel(extra, complete, ierror)
#include "declare_mpi.h"
  integer(kind=MPI_ADDRESS_KIND) :: extra
  logical :: complete
  integer :: ierror
  ierror = MPI_SUCCESS
  if (extra /= 7 .or. complete) ierror = MPI_ERR_OTHER
end subroutine

subroutine on_error(comm, code)
#include "declare_mpi.h"
  integer :: comm, code, class, size, ierror, released, handled
  common /callbacks/ released, handled
  call MPI_ERROR_CLASS(code, class, ierror)
  call MPI_COMM_SIZE(comm, size, ierror)
  if (class == MPI_ERR_RANK .and. size == 3) handled = handled + 1
end subroutine

subroutine on_file_error(file, code)
#include "declare_mpi.h"
  integer :: file, code, class, mode, ierror, released, handled
  common /callbacks/ released, handled
  mode = ior(MPI_MODE_CREATE, MPI_MODE_RDWR)
#ifdef OPEN_MPI
  call MPI_FILE_GET_AMODE(file, mode, ierror)
#endif
  call MPI_ERROR_CLASS(code, class, ierror)
  if (class == MPI_ERR_IO .and. mode == ior(MPI_MODE_CREATE, MPI_MODE_RDWR)) handled = handled + 100
end subroutine
