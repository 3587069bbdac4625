! A plate that warms up from one edge, in Fortran: plate_c.c says how. The ranks divide it into rows. With MPIFH by
! mpif.h, with F08 by "use mpi_f08", else by "use mpi".
#if defined F08
#define HANDLE(KIND) type(KIND)
#define STATUS(NAME) type(MPI_Status) :: NAME(4)
#define SOURCE(NAME, I) NAME(I)%MPI_SOURCE
#define TAG(NAME, I) NAME(I)%MPI_TAG
#else
#define HANDLE(KIND) integer
#define STATUS(NAME) integer :: NAME(MPI_STATUS_SIZE, 4)
#define SOURCE(NAME, I) NAME(MPI_SOURCE, I)
#define TAG(NAME, I) NAME(MPI_TAG, I)
#endif
program plate_fortran
#if defined F08
  use mpi_f08
#elif !defined MPIFH
  use mpi
#endif
  use, intrinsic :: iso_c_binding, only: c_int
  implicit none
#ifdef MPIFH
  include 'mpif.h'
#endif
  interface
    integer(c_int) function pause_us(microseconds) bind(c, name='usleep')
      import
      integer(c_int), value :: microseconds
    end function
  end interface
  integer, parameter :: rows = 24, columns = 48, steps = 400, every = 20, tag_down = 11, tag_up = 12
  integer, parameter :: long = selected_int_kind(18)
  integer(long), parameter :: prime = 1000003
  double precision :: plate(0:rows + 1, columns, 0:1), change, worst
  integer(long) :: part, all_parts, products, total
  integer :: rank, ranks, sizes(1), up, down, received, all_received, step, now, next, x, y, ierror
  logical :: periodic(1)
  HANDLE(MPI_Comm) :: line
  HANDLE(MPI_Datatype) :: row
  HANDLE(MPI_Op) :: multiply
  HANDLE(MPI_Request) :: requests(4)
  STATUS(statuses)
#ifdef F08
  procedure(MPI_User_function) :: multiply_parts
#else
  external :: multiply_parts
#endif

  call MPI_Init(ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  sizes = ranks
  periodic = .false.
  call MPI_Cart_create(MPI_COMM_WORLD, 1, sizes, periodic, .false., line, ierror)
  call MPI_Comm_rank(line, rank, ierror)
  call MPI_Cart_shift(line, 0, 1, up, down, ierror)
  call MPI_Type_vector(columns, 1, rows + 2, MPI_DOUBLE_PRECISION, row, ierror)
  call MPI_Type_commit(row, ierror)
  call MPI_Op_create(multiply_parts, .true., multiply, ierror)
  plate = 0
  if (up == MPI_PROC_NULL) then
    do x = 1, columns
      plate(0, x, :) = 100d0 * x / columns
    end do
  end if
  products = 1
  received = 0
  do step = 1, steps
    now = mod(step, 2)
    next = 1 - now
    call MPI_Irecv(plate(0, 1, now), 1, row, up, tag_down, line, requests(1), ierror)
    call MPI_Irecv(plate(rows + 1, 1, now), 1, row, down, tag_up, line, requests(2), ierror)
    call MPI_Isend(plate(rows, 1, now), 1, row, down, tag_down, line, requests(3), ierror)
    call MPI_Isend(plate(1, 1, now), 1, row, up, tag_up, line, requests(4), ierror)
    call MPI_Waitall(4, requests, statuses, ierror)
    if (SOURCE(statuses, 2) == down .and. TAG(statuses, 2) == tag_up) received = received + 1
    change = 0
    do x = 2, columns - 1
      do y = 1, rows
        plate(y, x, next) = plate(y, x, now) + 0.24d0 * (plate(y - 1, x, now) + plate(y + 1, x, now) &
                            + plate(y, x - 1, now) + plate(y, x + 1, now) - 4 * plate(y, x, now))
        change = max(change, plate(y, x, next) - plate(y, x, now))
      end do
    end do
    if (mod(step, every) /= 0) cycle
    part = digest(plate(:, :, next))
    call MPI_Allreduce(change, worst, 1, MPI_DOUBLE_PRECISION, MPI_MAX, line, ierror)
    call MPI_Allreduce(part, all_parts, 1, MPI_INTEGER8, multiply, line, ierror)
    call MPI_Reduce(part, total, 1, MPI_INTEGER8, MPI_SUM, 0, line, ierror)
    products = mod(products * all_parts, prime)
    call MPI_Bcast(total, 1, MPI_INTEGER8, 0, line, ierror)
    ierror = pause_us(5000)
    if (rank == 0) print '(a,i0)', 'step ', step
    flush (6)
    call hold(step)
  end do
  call MPI_Reduce(received, all_received, 1, MPI_INTEGER, MPI_SUM, 0, line, ierror)
  if (rank == 0) then
    print '(a,z16.16)', 'result: change = ', transfer(worst, part)
    print '(a,i0)', 'result: products = ', products
    print '(a,i0)', 'result: sum = ', total
    print '(a,i0)', 'result: received = ', all_received
  end if
  call MPI_Op_free(multiply, ierror)
  call MPI_Type_free(row, ierror)
  call MPI_Comm_free(line, ierror)
  call MPI_Finalize(ierror)

contains

  integer(long) function digest(values)
    double precision, intent(in) :: values(0:rows + 1, columns)
    integer :: i, j
    digest = 17
    do j = 1, columns
      do i = 0, rows + 1
        digest = mod(digest * 31 + iand(transfer(values(i, j), digest), 65535_long), prime)
      end do
    end do
    digest = digest + 1
  end function

  subroutine hold(step)
    integer, intent(in) :: step
    integer :: held, failed
    logical :: found
    character(len=1024) :: text
    call get_environment_variable('STEPS_HOLD', text)
    read (text, *, iostat=failed) held
    if (failed /= 0 .or. held /= step) return
    text = text(index(text, ' ') + 1:)
    found = .false.
    do while (.not. found)
      failed = pause_us(10000)
      inquire (file=trim(text), exist=found)
    end do
  end subroutine
end program

subroutine multiply_parts(in, inout, length, type)
#ifdef F08
  use mpi_f08
  use, intrinsic :: iso_c_binding, only: c_f_pointer, c_ptr
  implicit none
  type(c_ptr), value :: in, inout
  integer :: length
  type(MPI_Datatype) :: type
  integer(selected_int_kind(18)), pointer :: a(:), b(:)
  call c_f_pointer(in, a, [length])
  call c_f_pointer(inout, b, [length])
  if (type%MPI_VAL == MPI_INTEGER8%MPI_VAL) b = mod(a * b, 1000003_8)
#else
  implicit none
  integer :: length, type
  integer(selected_int_kind(18)) :: in(length), inout(length)
  if (type /= 0) inout = mod(in * inout, 1000003_8)
#endif
end subroutine
