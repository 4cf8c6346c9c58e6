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
! A model with several inputs takes them by name:
!
!   status = troika_model_step(model, [troika_array("field", field), troika_array("material", material)], &
!       [troika_array("change", change)], samples, loss)
!
! Every function returns 0 or what went wrong; troika_last_error() has it in words. Arrays are in Fortran's order:
! inputs(input_dim, samples), targets(output_dim, samples), contiguous.
! A troika_array refers to the array that it was made of, which has to be there for as long as it is used. Make it in the
! call, as above, of an array that is contiguous: another one is refused.
module troika
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  implicit none
  private

  public :: troika_session, troika_model, troika_array, troika_tensor
  public :: troika_open, troika_open_mpi, troika_open_alone, troika_close, troika_rank, troika_size
  public :: troika_all_reduce, troika_broadcast, troika_barrier
  public :: troika_model_create, troika_model_create_from_file, troika_model_free
  public :: troika_model_step, troika_model_loss, troika_model_predict, troika_model_steps
  public :: troika_model_learning_rate, troika_model_losses, troika_model_tensor_count, troika_model_tensor
  public :: troika_model_save, troika_model_load
  public :: troika_last_error, troika_last_hint

  integer, parameter, public :: troika_ok = 0, troika_internal = 1, troika_usage = 2, troika_data = 3, &
      troika_rendezvous = 4, troika_rank_died = 5, troika_nonfinite = 6, troika_storage = 7
  integer, parameter, public :: troika_sum = 0, troika_average = 1, troika_max = 2, troika_min = 3
  integer, parameter, public :: troika_input = 0, troika_target = 1, troika_output = 2
  integer, parameter, public :: troika_losses = 1000
  integer(c_int), parameter :: type_float = 0, type_double = 1, type_int32 = 2, type_int64 = 3

  type :: troika_session
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  type :: troika_model
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! An array by name, of any rank and of real32, real64, int32 or int64: troika_array("field", field). No component is
  ! allocatable: compilers lose the memory of those in lists that a call is given.
  type :: troika_array
    private
    character(kind=c_char, len=256) :: name = c_null_char
    type(c_ptr) :: data = c_null_ptr
    integer(c_int64_t) :: count = 0
    integer(c_int) :: type = type_double
  end type

  ! A tensor of one sample, as the model describes it: reals of either kind, or whole numbers, from 0 to below `classes`
  ! where that is above 0. An array of samples is declared as (shape(1), shape(2), ..., samples).
  type :: troika_tensor
    character(:), allocatable :: name
    integer(int64), allocatable :: shape(:)
    integer(int64) :: values = 1, classes = 0
    logical :: is_whole = .false., is_optional = .false.
  end type

  type, bind(c) :: c_array
    type(c_ptr) :: name, data
    integer(c_int64_t) :: count
    integer(c_int) :: type
  end type

  type, bind(c) :: c_tensor
    type(c_ptr) :: name = c_null_ptr
    integer(c_int) :: type = 0, dims = 0
    type(c_ptr) :: shape = c_null_ptr
    integer(c_int64_t) :: values = 0, classes = 0
    integer(c_int) :: optional = 0
  end type

  interface troika_array
    module procedure array_float, array_double, array_int32, array_int64
  end interface
  interface troika_all_reduce
    module procedure all_reduce_float, all_reduce_double
  end interface
  interface troika_broadcast
    module procedure broadcast_float, broadcast_double
  end interface
  interface troika_model_step
    module procedure step_float, step_double, step_arrays
  end interface
  interface troika_model_loss
    module procedure loss_float, loss_double, loss_arrays
  end interface
  interface troika_model_predict
    module procedure predict_float, predict_double, predict_arrays
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
    integer(c_int) function c_model_step_arrays(model, inputs, input_count, targets, target_count, samples, loss) &
        bind(c, name="troika_model_step_arrays")
      import :: c_array, c_double, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model
      type(c_array) :: inputs(*), targets(*)
      integer(c_int), value :: input_count, target_count
      integer(c_int64_t), value :: samples
      real(c_double) :: loss
    end function
    integer(c_int) function c_model_loss_arrays(model, inputs, input_count, targets, target_count, samples, loss) &
        bind(c, name="troika_model_loss_arrays")
      import :: c_array, c_double, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model
      type(c_array) :: inputs(*), targets(*)
      integer(c_int), value :: input_count, target_count
      integer(c_int64_t), value :: samples
      real(c_double) :: loss
    end function
    integer(c_int) function c_model_predict_arrays(model, inputs, input_count, samples, outputs, output_count) &
        bind(c, name="troika_model_predict_arrays")
      import :: c_array, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model
      type(c_array) :: inputs(*), outputs(*)
      integer(c_int), value :: input_count, output_count
      integer(c_int64_t), value :: samples
    end function
    integer(c_int) function c_model_tensor_count(model, role, count) bind(c, name="troika_model_tensor_count")
      import :: c_int, c_ptr
      type(c_ptr), value :: model
      integer(c_int), value :: role
      integer(c_int) :: count
    end function
    integer(c_int) function c_model_tensor(model, role, index, tensor) bind(c, name="troika_model_tensor")
      import :: c_int, c_ptr, c_tensor
      type(c_ptr), value :: model
      integer(c_int), value :: role, index
      type(c_tensor) :: tensor
    end function
    integer(c_int) function c_model_learning_rate(model, rate) bind(c, name="troika_model_learning_rate")
      import :: c_double, c_int, c_ptr
      type(c_ptr), value :: model
      real(c_double) :: rate
    end function
    integer(c_int) function c_model_losses(model, limit, losses, count) bind(c, name="troika_model_losses")
      import :: c_double, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model
      integer(c_int64_t), value :: limit
      real(c_double) :: losses(*)
      integer(c_int64_t) :: count
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
    if (status /= troika_usage) session%handle = c_null_ptr
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

  function array_float(name, values) result(array)
    character(*), intent(in) :: name
    real(real32), target :: values(..)
    type(troika_array) :: array
    array = array_of(name, c_loc(values), size(values, kind=c_int64_t), is_contiguous(values), type_float)
  end function

  function array_double(name, values) result(array)
    character(*), intent(in) :: name
    real(real64), target :: values(..)
    type(troika_array) :: array
    array = array_of(name, c_loc(values), size(values, kind=c_int64_t), is_contiguous(values), type_double)
  end function

  function array_int32(name, values) result(array)
    character(*), intent(in) :: name
    integer(int32), target :: values(..)
    type(troika_array) :: array
    array = array_of(name, c_loc(values), size(values, kind=c_int64_t), is_contiguous(values), type_int32)
  end function

  function array_int64(name, values) result(array)
    character(*), intent(in) :: name
    integer(int64), target :: values(..)
    type(troika_array) :: array
    array = array_of(name, c_loc(values), size(values, kind=c_int64_t), is_contiguous(values), type_int64)
  end function

  ! A negative count is refused in words.
  function array_of(name, data, count, contiguous, type) result(array)
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: data
    integer(c_int64_t), intent(in) :: count
    logical, intent(in) :: contiguous
    integer(c_int), intent(in) :: type
    type(troika_array) :: array
    array%name = name(:min(len_trim(name), len(array%name) - 1)) // c_null_char
    array%data = data
    array%count = merge(count, -1_c_int64_t, contiguous)
    array%type = type
  end function

  integer function step_arrays(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    type(troika_array), intent(in), target :: inputs(:), targets(:)
    integer, intent(in) :: samples
    real(real64), intent(inout) :: loss
    status = c_model_step_arrays(model%handle, arrays_in_c(inputs), size(inputs, kind=c_int), arrays_in_c(targets), &
        size(targets, kind=c_int), int(samples, c_int64_t), loss)
  end function

  integer function loss_arrays(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    type(troika_array), intent(in), target :: inputs(:), targets(:)
    integer, intent(in) :: samples
    real(real64), intent(inout) :: loss
    status = c_model_loss_arrays(model%handle, arrays_in_c(inputs), size(inputs, kind=c_int), arrays_in_c(targets), &
        size(targets, kind=c_int), int(samples, c_int64_t), loss)
  end function

  integer function predict_arrays(model, inputs, samples, outputs) result(status)
    type(troika_model), intent(in) :: model
    type(troika_array), intent(in), target :: inputs(:), outputs(:)
    integer, intent(in) :: samples
    status = c_model_predict_arrays(model%handle, arrays_in_c(inputs), size(inputs, kind=c_int), &
        int(samples, c_int64_t), arrays_in_c(outputs), size(outputs, kind=c_int))
  end function

  function arrays_in_c(arrays) result(list)
    type(troika_array), intent(in), target :: arrays(:)
    type(c_array) :: list(size(arrays))
    integer :: i
    do i = 1, size(arrays)
      list(i) = c_array(c_loc(arrays(i)%name), arrays(i)%data, arrays(i)%count, arrays(i)%type)
    end do
  end function

  ! How many tensors the model has of a role: troika_input, troika_target or troika_output.
  integer function troika_model_tensor_count(model, role, count) result(status)
    type(troika_model), intent(in) :: model
    integer, intent(in) :: role
    integer, intent(out) :: count
    integer(c_int) :: value
    value = 0
    status = c_model_tensor_count(model%handle, int(role, c_int), value)
    count = value
  end function

  ! The tensor at `index`, from 1.
  integer function troika_model_tensor(model, role, index, tensor) result(status)
    type(troika_model), intent(in) :: model
    integer, intent(in) :: role, index
    type(troika_tensor), intent(out) :: tensor
    type(c_tensor) :: found
    integer(c_int64_t), pointer :: shape(:)
    status = c_model_tensor(model%handle, int(role, c_int), int(index - 1, c_int), found)
    if (status /= troika_ok) return
    tensor%name = copied(found%name)
    allocate(tensor%shape(found%dims))
    if (found%dims > 0) then
      call c_f_pointer(found%shape, shape, [found%dims])
      tensor%shape = shape(found%dims:1:-1)
    end if
    tensor%values = found%values
    tensor%classes = found%classes
    tensor%is_whole = found%type == type_int64
    tensor%is_optional = found%optional /= 0
  end function

  ! That of the last step; before the first, that of the first.
  integer function troika_model_learning_rate(model, rate) result(status)
    type(troika_model), intent(in) :: model
    real(real64), intent(out) :: rate
    rate = 0
    status = c_model_learning_rate(model%handle, rate)
  end function

  ! The mean losses of the last steps, up to troika_losses, the oldest first.
  integer function troika_model_losses(model, losses) result(status)
    type(troika_model), intent(in) :: model
    real(real64), allocatable, intent(out) :: losses(:)
    real(real64) :: kept(troika_losses)
    integer(c_int64_t) :: count
    count = 0
    status = c_model_losses(model%handle, int(troika_losses, c_int64_t), kept, count)
    losses = kept(1:count)
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
