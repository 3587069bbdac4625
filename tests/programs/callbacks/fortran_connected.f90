! fortran_connected.f90 - callbacks in Fortran, with fortran_callbacks.c. FOLDER/end ends the program.
module connection
   use, intrinsic :: iso_c_binding, only: c_int, c_ptr
   use, intrinsic :: iso_fortran_env, only: output_unit
   implicit none
   integer :: times = 0
   interface
      integer(c_int) function register_callbacks() bind(C)
         import :: c_int
      end function
      subroutine poll_callbacks() bind(C)
      end subroutine
   end interface
contains
   integer(c_int) function leave(data) bind(C)
      type(c_ptr), value :: data
      times = times + 1
      call say('leaves', times)
      leave = 0
   end function

   integer(c_int) function come_back(data) bind(C)
      type(c_ptr), value :: data
      call say('is back', times)
      come_back = 0
   end function

   subroutine say(text, number)
      character(*), intent(in) :: text
      integer, intent(in) :: number
      write (output_unit, '(a, 1x, i0)') text, number
      flush (output_unit)
   end subroutine
end module

program fortran_connected
   use connection
   implicit none
   character(512) :: folder
   logical :: ended
   call get_command_argument(1, folder)
   call say('registered', register_callbacks())
   ended = .false.
   do while (.not. ended)
      call poll_callbacks()
      inquire (file=trim(folder)//'/end', exist=ended)
   end do
   call say('ok', times)
end program
