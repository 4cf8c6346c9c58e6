! troika for Fortran: the functions of troika.h, which says what each does, for arrays of real32 and real64 of any
! rank. Compile this file with your own compiler (CMake: link troika::fortran) and link libtroika.
!
!   use troika
!   type(troika_session) :: session
!   type(troika_model) :: model
!   status = troika_open_mpi(communicator, session)
!   status = troika_model_create(session, recipe, model)
!   status = troika_model_step(model, inputs, targets, samples, loss)
!
! Every function returns 0 or what went wrong; troika_last_error() has it in words. Arrays are in Fortran's order:
! inputs(input_dim, samples), targets(output_dim, samples), contiguous.
module troika
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: real32, real64
  implicit none
  private

  public :: troika_session, troika_model
  public :: troika_open, troika_open_mpi, troika_open_alone, troika_close, troika_rank, troika_size
  public :: troika_all_reduce, troika_broadcast, troika_barrier
  public :: troika_model_create, troika_model_create_from_file, troika_model_free
  public :: troika_model_step, troika_model_loss, troika_model_predict, troika_model_steps
  public :: troika_model_save, troika_model_load
  public :: troika_last_error, troika_last_hint

  integer, parameter, public :: troika_ok = 0, troika_internal = 1, troika_usage = 2, troika_data = 3, &
      troika_rendezvous = 4, troika_nonfinite = 6, troika_storage = 7
  integer, parameter, public :: troika_sum = 0, troika_average = 1, troika_max = 2, troika_min = 3
  integer(c_int), parameter :: type_float = 0, type_double = 1

  type :: troika_session
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  type :: troika_model
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  interface troika_all_reduce
    module procedure all_reduce_float, all_reduce_double
  end interface
  interface troika_broadcast
    module procedure broadcast_float, broadcast_double
  end interface
  interface troika_model_step
    module procedure step_float, step_double
  end interface
  interface troika_model_loss
    module procedure loss_float, loss_double
  end interface
  interface troika_model_predict
    module procedure predict_float, predict_double
  end interface

  interface
    integer(c_int) function c_open(options, session) bind(c, name="troika_open")
      import :: c_int, c_ptr
      type(c_ptr), value :: options
      type(c_ptr) :: session
    end function
    integer(c_int) function c_open_mpi(communicator, options, session) bind(c, name="troika_open_mpi")
      import :: c_int, c_ptr
      integer(c_int), value :: communicator
      type(c_ptr), value :: options
      type(c_ptr) :: session
    end function
    integer(c_int) function c_open_alone(options, session) bind(c, name="troika_open_alone")
      import :: c_int, c_ptr
      type(c_ptr), value :: options
      type(c_ptr) :: session
    end function
    integer(c_int) function c_close(session) bind(c, name="troika_close")
      import :: c_int, c_ptr
      type(c_ptr), value :: session
    end function
    integer(c_int) function c_rank(session, rank) bind(c, name="troika_rank")
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int) :: rank
    end function
    integer(c_int) function c_size(session, size) bind(c, name="troika_size")
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int) :: size
    end function
    integer(c_int) function c_all_reduce(session, values, count, type, reduction, label) bind(c, name="troika_all_reduce")
      import :: c_char, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: session, values
      integer(c_int64_t), value :: count
      integer(c_int), value :: type, reduction
      character(kind=c_char) :: label(*)
    end function
    integer(c_int) function c_broadcast(session, values, count, type, root, label) bind(c, name="troika_broadcast")
      import :: c_char, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: session, values
      integer(c_int64_t), value :: count
      integer(c_int), value :: type, root
      character(kind=c_char) :: label(*)
    end function
    integer(c_int) function c_barrier(session, label) bind(c, name="troika_barrier")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: session
      character(kind=c_char) :: label(*)
    end function
    integer(c_int) function c_model_create(session, recipe, model) bind(c, name="troika_model_create")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: session
      character(kind=c_char) :: recipe(*)
      type(c_ptr) :: model
    end function
    integer(c_int) function c_model_create_from_file(session, path, model) bind(c, name="troika_model_create_from_file")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: session
      character(kind=c_char) :: path(*)
      type(c_ptr) :: model
    end function
    integer(c_int) function c_model_free(model) bind(c, name="troika_model_free")
      import :: c_int, c_ptr
      type(c_ptr), value :: model
    end function
    integer(c_int) function c_model_step(model, inputs, targets, samples, type, loss) bind(c, name="troika_model_step")
      import :: c_double, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model, inputs, targets
      integer(c_int64_t), value :: samples
      integer(c_int), value :: type
      real(c_double) :: loss
    end function
    integer(c_int) function c_model_loss(model, inputs, targets, samples, type, loss) bind(c, name="troika_model_loss")
      import :: c_double, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model, inputs, targets
      integer(c_int64_t), value :: samples
      integer(c_int), value :: type
      real(c_double) :: loss
    end function
    integer(c_int) function c_model_predict(model, inputs, samples, type, outputs) bind(c, name="troika_model_predict")
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model, inputs, outputs
      integer(c_int64_t), value :: samples
      integer(c_int), value :: type
    end function
    integer(c_int) function c_model_steps(model, steps) bind(c, name="troika_model_steps")
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model
      integer(c_int64_t) :: steps
    end function
    integer(c_int) function c_model_save(model, path) bind(c, name="troika_model_save")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: model
      character(kind=c_char) :: path(*)
    end function
    integer(c_int) function c_model_load(model, path) bind(c, name="troika_model_load")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: model
      character(kind=c_char) :: path(*)
    end function
    type(c_ptr) function c_last_error() bind(c, name="troika_last_error")
      import :: c_ptr
    end function
    type(c_ptr) function c_last_hint() bind(c, name="troika_last_hint")
      import :: c_ptr
    end function
    integer(c_size_t) function c_strlen(text) bind(c, name="strlen")
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
    end function
  end interface

contains

  integer function troika_open(session) result(status)
    type(troika_session), intent(out) :: session
    status = c_open(c_null_ptr, session%handle)
  end function

  ! `communicator` is the integer of mpif.h and `use mpi`; with `use mpi_f08` it is communicator%mpi_val.
  integer function troika_open_mpi(communicator, session) result(status)
    integer, intent(in) :: communicator
    type(troika_session), intent(out) :: session
    status = c_open_mpi(int(communicator, c_int), c_null_ptr, session%handle)
  end function

  integer function troika_open_alone(session) result(status)
    type(troika_session), intent(out) :: session
    status = c_open_alone(c_null_ptr, session%handle)
  end function

  integer function troika_close(session) result(status)
    type(troika_session), intent(inout) :: session
    status = c_close(session%handle)
    session%handle = c_null_ptr
  end function

  integer function troika_rank(session, rank) result(status)
    type(troika_session), intent(in) :: session
    integer, intent(out) :: rank
    integer(c_int) :: value
    value = -1
    status = c_rank(session%handle, value)
    rank = value
  end function

  integer function troika_size(session, size) result(status)
    type(troika_session), intent(in) :: session
    integer, intent(out) :: size
    integer(c_int) :: value
    value = -1
    status = c_size(session%handle, value)
    size = value
  end function

  integer function all_reduce_float(session, values, reduction, label) result(status)
    type(troika_session), intent(in) :: session
    real(real32), intent(inout), target, contiguous :: values(..)
    integer, intent(in) :: reduction
    character(*), intent(in) :: label
    status = c_all_reduce(session%handle, c_loc(values), size(values, kind=c_int64_t), type_float, &
        int(reduction, c_int), label // c_null_char)
  end function

  integer function all_reduce_double(session, values, reduction, label) result(status)
    type(troika_session), intent(in) :: session
    real(real64), intent(inout), target, contiguous :: values(..)
    integer, intent(in) :: reduction
    character(*), intent(in) :: label
    status = c_all_reduce(session%handle, c_loc(values), size(values, kind=c_int64_t), type_double, &
        int(reduction, c_int), label // c_null_char)
  end function

  integer function broadcast_float(session, values, root, label) result(status)
    type(troika_session), intent(in) :: session
    real(real32), intent(inout), target, contiguous :: values(..)
    integer, intent(in) :: root
    character(*), intent(in) :: label
    status = c_broadcast(session%handle, c_loc(values), size(values, kind=c_int64_t), type_float, &
        int(root, c_int), label // c_null_char)
  end function

  integer function broadcast_double(session, values, root, label) result(status)
    type(troika_session), intent(in) :: session
    real(real64), intent(inout), target, contiguous :: values(..)
    integer, intent(in) :: root
    character(*), intent(in) :: label
    status = c_broadcast(session%handle, c_loc(values), size(values, kind=c_int64_t), type_double, &
        int(root, c_int), label // c_null_char)
  end function

  integer function troika_barrier(session, label) result(status)
    type(troika_session), intent(in) :: session
    character(*), intent(in) :: label
    status = c_barrier(session%handle, label // c_null_char)
  end function

  integer function troika_model_create(session, recipe, model) result(status)
    type(troika_session), intent(in) :: session
    character(*), intent(in) :: recipe
    type(troika_model), intent(out) :: model
    status = c_model_create(session%handle, recipe // c_null_char, model%handle)
  end function

  integer function troika_model_create_from_file(session, path, model) result(status)
    type(troika_session), intent(in) :: session
    character(*), intent(in) :: path
    type(troika_model), intent(out) :: model
    status = c_model_create_from_file(session%handle, trim(path) // c_null_char, model%handle)
  end function

  integer function troika_model_free(model) result(status)
    type(troika_model), intent(inout) :: model
    status = c_model_free(model%handle)
    model%handle = c_null_ptr
  end function

  integer function step_float(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    real(real32), intent(in), target, contiguous :: inputs(..), targets(..)
    integer, intent(in) :: samples
    real(real64), intent(inout) :: loss
    status = c_model_step(model%handle, c_loc(inputs), c_loc(targets), int(samples, c_int64_t), type_float, loss)
  end function

  integer function step_double(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    real(real64), intent(in), target, contiguous :: inputs(..), targets(..)
    integer, intent(in) :: samples
    real(real64), intent(inout) :: loss
    status = c_model_step(model%handle, c_loc(inputs), c_loc(targets), int(samples, c_int64_t), type_double, loss)
  end function

  integer function loss_float(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    real(real32), intent(in), target, contiguous :: inputs(..), targets(..)
    integer, intent(in) :: samples
    real(real64), intent(inout) :: loss
    status = c_model_loss(model%handle, c_loc(inputs), c_loc(targets), int(samples, c_int64_t), type_float, loss)
  end function

  integer function loss_double(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    real(real64), intent(in), target, contiguous :: inputs(..), targets(..)
    integer, intent(in) :: samples
    real(real64), intent(inout) :: loss
    status = c_model_loss(model%handle, c_loc(inputs), c_loc(targets), int(samples, c_int64_t), type_double, loss)
  end function

  integer function predict_float(model, inputs, samples, outputs) result(status)
    type(troika_model), intent(in) :: model
    real(real32), intent(in), target, contiguous :: inputs(..)
    integer, intent(in) :: samples
    real(real32), intent(inout), target, contiguous :: outputs(..)
    status = c_model_predict(model%handle, c_loc(inputs), int(samples, c_int64_t), type_float, c_loc(outputs))
  end function

  integer function predict_double(model, inputs, samples, outputs) result(status)
    type(troika_model), intent(in) :: model
    real(real64), intent(in), target, contiguous :: inputs(..)
    integer, intent(in) :: samples
    real(real64), intent(inout), target, contiguous :: outputs(..)
    status = c_model_predict(model%handle, c_loc(inputs), int(samples, c_int64_t), type_double, c_loc(outputs))
  end function

  integer function troika_model_steps(model, steps) result(status)
    type(troika_model), intent(in) :: model
    integer(c_int64_t), intent(out) :: steps
    steps = 0
    status = c_model_steps(model%handle, steps)
  end function

  integer function troika_model_save(model, path) result(status)
    type(troika_model), intent(in) :: model
    character(*), intent(in) :: path
    status = c_model_save(model%handle, trim(path) // c_null_char)
  end function

  integer function troika_model_load(model, path) result(status)
    type(troika_model), intent(in) :: model
    character(*), intent(in) :: path
    status = c_model_load(model%handle, trim(path) // c_null_char)
  end function

  function troika_last_error() result(text)
    character(:), allocatable :: text
    text = copied(c_last_error())
  end function

  function troika_last_hint() result(text)
    character(:), allocatable :: text
    text = copied(c_last_hint())
  end function

  function copied(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    integer :: i, length
    length = int(c_strlen(pointer))
    call c_f_pointer(pointer, characters, [length])
    allocate(character(length) :: text)
    do i = 1, length
      text(i:i) = characters(i)
    end do
  end function

end module
