! troika for Fortran: the functions of troika.h, which says what each does, for arrays of real32 and real64 of any
! rank. Compile troika_c.f90, troika_arrays.f90 and this file, in this order, with your own compiler (CMake: link
! troika::fortran) and link libtroika.
!
!   use troika
!   type(troika_session) :: session
!   type(troika_model) :: model
!   status = troika_open_mpi(communicator, session, troika_options(timeout_seconds=10))
!   status = troika_model_create(session, recipe, model)
!   status = troika_model_step(model, inputs, targets, loss=loss)
!
! A model with several inputs takes them by name:
!
!   status = troika_model_step(model, [troika_array("field", field), troika_array("material", material)], &
!       [troika_array("change", change)], loss=loss)
!
! Every function returns 0 or what went wrong; troika_last_error() has it in words. Arrays are in Fortran's order:
! inputs(input_dim, samples), targets(output_dim, samples). `samples` may be left out: it is then what the first input
! holds. An array of another size, or whose samples do not come last, is refused.
! A troika_array refers to the variable that it was made of, which has to be there for as long as it is used. Make it in
! the call, as above, of a variable that is contiguous: a section that is not is refused. An expression, or a section
! whose indices are a list, is gone before the call reads it, and nothing can tell.
module troika
  use troika_c
  use troika_arrays
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  implicit none
  private

  public :: troika_session, troika_model, troika_options, troika_array, troika_tensor
  public :: troika_open, troika_open_mpi, troika_open_alone, troika_close, troika_rank, troika_size
  public :: troika_all_reduce, troika_broadcast, troika_barrier
  public :: troika_model_create, troika_model_create_from_file, troika_model_set_name, troika_model_free
  public :: troika_model_step, troika_model_loss, troika_model_predict, troika_model_steps
  public :: troika_model_input_gradients
  public :: troika_model_learning_rate, troika_model_losses, troika_model_tensor_count, troika_model_tensor
  public :: troika_model_save, troika_model_load, troika_model_save_state, troika_model_load_state
  public :: troika_last_error, troika_last_hint

  integer, parameter, public :: troika_ok = 0, troika_internal = 1, troika_usage = 2, troika_data = 3, &
      troika_rendezvous = 4, troika_rank_died = 5, troika_nonfinite = 6, troika_storage = 7
  integer, parameter, public :: troika_sum = 0, troika_average = 1, troika_max = 2, troika_min = 3
  integer, parameter, public :: troika_losses = 1000
  public :: troika_input, troika_target, troika_output  ! the roles of tensors

  type :: troika_session
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  type :: troika_model
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! Zero, and a text that is not set, stand for the default: troika_options(engine="shm", timeout_seconds=10).
  type :: troika_options
    character(:), allocatable :: engine, recorders
    real(real64) :: timeout_seconds = 0, rendezvous_timeout_seconds = 0
    integer :: threads = 0
  end type

  ! The same as C has it, which refers to the texts.
  type :: options_for_c
    character(:), allocatable :: engine, recorders
    type(c_options) :: values
  end type

  ! A tensor of one sample, as the model describes it: reals of either kind, or whole numbers, from 0 to below `classes`
  ! where that is above 0. An array of samples is declared as (shape(1), shape(2), ..., samples).
  type :: troika_tensor
    character(:), allocatable :: name
    integer(int64), allocatable :: shape(:)
    integer(int64) :: values = 1, classes = 0
    logical :: is_whole = .false., is_optional = .false.
  end type

  interface troika_all_reduce
    module procedure all_reduce_float, all_reduce_double, all_reduce_int32, all_reduce_int64
  end interface
  interface troika_broadcast
    module procedure broadcast_float, broadcast_double, broadcast_int32, broadcast_int64
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

contains

  integer function troika_open(session, options) result(status)
    type(troika_session), intent(out) :: session
    type(troika_options), intent(in), optional :: options
    type(options_for_c), target :: copy
    status = c_open(options_in_c(options, copy), session%handle)
  end function

  ! `communicator` is the integer of mpif.h and `use mpi`; with `use mpi_f08` it is communicator%mpi_val.
  integer function troika_open_mpi(communicator, session, options) result(status)
    integer, intent(in) :: communicator
    type(troika_session), intent(out) :: session
    type(troika_options), intent(in), optional :: options
    type(options_for_c), target :: copy
    status = c_open_mpi(int(communicator, c_int), options_in_c(options, copy), session%handle)
  end function

  integer function troika_open_alone(session, options) result(status)
    type(troika_session), intent(out) :: session
    type(troika_options), intent(in), optional :: options
    type(options_for_c), target :: copy
    status = c_open_alone(options_in_c(options, copy), session%handle)
  end function

  function options_in_c(options, copy) result(pointer)
    type(troika_options), intent(in), optional :: options
    type(options_for_c), intent(inout), target :: copy
    type(c_ptr) :: pointer
    pointer = c_null_ptr
    if (.not. present(options)) return
    if (allocated(options%engine)) then
      copy%engine = trim(options%engine) // c_null_char
      copy%values%engine = c_loc(copy%engine)
    end if
    if (allocated(options%recorders)) then
      copy%recorders = trim(options%recorders) // c_null_char
      copy%values%recorders = c_loc(copy%recorders)
    end if
    copy%values%timeout_seconds = options%timeout_seconds
    copy%values%rendezvous_timeout_seconds = options%rendezvous_timeout_seconds
    copy%values%threads = int(options%threads, c_int)
    pointer = c_loc(copy%values)
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
    integer, intent(in), optional :: reduction
    character(*), intent(in), optional :: label
    status = all_reduce(session, c_loc(values), size(values, kind=c_int64_t), type_float, reduction, label)
  end function

  integer function all_reduce_double(session, values, reduction, label) result(status)
    type(troika_session), intent(in) :: session
    real(real64), intent(inout), target, contiguous :: values(..)
    integer, intent(in), optional :: reduction
    character(*), intent(in), optional :: label
    status = all_reduce(session, c_loc(values), size(values, kind=c_int64_t), type_double, reduction, label)
  end function

  integer function all_reduce_int32(session, values, reduction, label) result(status)
    type(troika_session), intent(in) :: session
    integer(int32), intent(inout), target, contiguous :: values(..)
    integer, intent(in), optional :: reduction
    character(*), intent(in), optional :: label
    status = all_reduce(session, c_loc(values), size(values, kind=c_int64_t), type_int32, reduction, label)
  end function

  integer function all_reduce_int64(session, values, reduction, label) result(status)
    type(troika_session), intent(in) :: session
    integer(int64), intent(inout), target, contiguous :: values(..)
    integer, intent(in), optional :: reduction
    character(*), intent(in), optional :: label
    status = all_reduce(session, c_loc(values), size(values, kind=c_int64_t), type_int64, reduction, label)
  end function

  integer function all_reduce(session, values, count, type, reduction, label) result(status)
    type(troika_session), intent(in) :: session
    type(c_ptr), intent(in) :: values
    integer(c_int64_t), intent(in) :: count
    integer(c_int), intent(in) :: type
    integer, intent(in), optional :: reduction
    character(*), intent(in), optional :: label
    integer(c_int) :: chosen
    chosen = troika_sum
    if (present(reduction)) chosen = int(reduction, c_int)
    status = c_all_reduce(session%handle, values, count, type, chosen, label_in_c(label, "all_reduce"))
  end function

  integer function broadcast_float(session, values, root, label) result(status)
    type(troika_session), intent(in) :: session
    real(real32), intent(inout), target, contiguous :: values(..)
    integer, intent(in), optional :: root
    character(*), intent(in), optional :: label
    status = broadcast(session, c_loc(values), size(values, kind=c_int64_t), type_float, root, label)
  end function

  integer function broadcast_double(session, values, root, label) result(status)
    type(troika_session), intent(in) :: session
    real(real64), intent(inout), target, contiguous :: values(..)
    integer, intent(in), optional :: root
    character(*), intent(in), optional :: label
    status = broadcast(session, c_loc(values), size(values, kind=c_int64_t), type_double, root, label)
  end function

  integer function broadcast_int32(session, values, root, label) result(status)
    type(troika_session), intent(in) :: session
    integer(int32), intent(inout), target, contiguous :: values(..)
    integer, intent(in), optional :: root
    character(*), intent(in), optional :: label
    status = broadcast(session, c_loc(values), size(values, kind=c_int64_t), type_int32, root, label)
  end function

  integer function broadcast_int64(session, values, root, label) result(status)
    type(troika_session), intent(in) :: session
    integer(int64), intent(inout), target, contiguous :: values(..)
    integer, intent(in), optional :: root
    character(*), intent(in), optional :: label
    status = broadcast(session, c_loc(values), size(values, kind=c_int64_t), type_int64, root, label)
  end function

  integer function broadcast(session, values, count, type, root, label) result(status)
    type(troika_session), intent(in) :: session
    type(c_ptr), intent(in) :: values
    integer(c_int64_t), intent(in) :: count
    integer(c_int), intent(in) :: type
    integer, intent(in), optional :: root
    character(*), intent(in), optional :: label
    integer(c_int) :: chosen
    chosen = 0
    if (present(root)) chosen = int(root, c_int)
    status = c_broadcast(session%handle, values, count, type, chosen, label_in_c(label, "broadcast"))
  end function

  integer function troika_barrier(session, label) result(status)
    type(troika_session), intent(in) :: session
    character(*), intent(in), optional :: label
    status = c_barrier(session%handle, label_in_c(label, "barrier"))
  end function

  function label_in_c(label, otherwise) result(text)
    character(*), intent(in), optional :: label
    character(*), intent(in) :: otherwise
    character(:), allocatable :: text
    text = otherwise // c_null_char
    if (present(label)) text = trim(label) // c_null_char
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

  ! What errors call the model beside its number; an empty name takes it away.
  integer function troika_model_set_name(model, name) result(status)
    type(troika_model), intent(in) :: model
    character(*), intent(in) :: name
    status = c_model_set_name(model%handle, trim(name) // c_null_char)
  end function

  integer function troika_model_free(model) result(status)
    type(troika_model), intent(inout) :: model
    status = c_model_free(model%handle)
    model%handle = c_null_ptr
  end function

  integer function step_float(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    real(real32), intent(in), target, contiguous :: inputs(..), targets(..)
    integer, intent(in), optional :: samples
    real(real64), intent(inout), optional :: loss
    status = step_arrays(model, [troika_array("", inputs)], [troika_array("", targets)], samples, loss)
  end function

  integer function step_double(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    real(real64), intent(in), target, contiguous :: inputs(..), targets(..)
    integer, intent(in), optional :: samples
    real(real64), intent(inout), optional :: loss
    status = step_arrays(model, [troika_array("", inputs)], [troika_array("", targets)], samples, loss)
  end function

  integer function step_arrays(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    type(troika_array), intent(in) :: inputs(:), targets(:)
    integer, intent(in), optional :: samples
    real(real64), intent(inout), optional :: loss
    status = judged(call_step, model, inputs, targets, samples, loss)
  end function

  integer function loss_float(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    real(real32), intent(in), target, contiguous :: inputs(..), targets(..)
    integer, intent(in), optional :: samples
    real(real64), intent(inout) :: loss
    status = loss_arrays(model, [troika_array("", inputs)], [troika_array("", targets)], samples, loss)
  end function

  integer function loss_double(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    real(real64), intent(in), target, contiguous :: inputs(..), targets(..)
    integer, intent(in), optional :: samples
    real(real64), intent(inout) :: loss
    status = loss_arrays(model, [troika_array("", inputs)], [troika_array("", targets)], samples, loss)
  end function

  integer function loss_arrays(model, inputs, targets, samples, loss) result(status)
    type(troika_model), intent(in) :: model
    type(troika_array), intent(in) :: inputs(:), targets(:)
    integer, intent(in), optional :: samples
    real(real64), intent(inout) :: loss
    status = judged(call_loss, model, inputs, targets, samples, loss)
  end function

  ! A step, or a loss without one. What this rank refuses is an error on all ranks, so it takes part in any case.
  integer function judged(call, model, inputs, targets, samples, loss) result(status)
    integer(c_int), intent(in) :: call
    type(troika_model), intent(in) :: model
    type(troika_array), intent(in), target :: inputs(:), targets(:)
    integer, intent(in), optional :: samples
    real(real64), intent(inout), optional :: loss
    type(c_array) :: inputs_in_c(size(inputs)), targets_in_c(size(targets))
    integer(c_int64_t) :: count
    type(refusal) :: why
    count = samples_of(model%handle, inputs, samples)
    call arrays_in_c(model%handle, troika_input, inputs, count, inputs_in_c, why)
    call arrays_in_c(model%handle, troika_target, targets, count, targets_in_c, why)
    if (allocated(why%error)) then
      status = c_refuse(model%handle, call, why%error, why%hint)
    else if (call == call_step) then
      status = c_model_step_arrays(model%handle, inputs_in_c, size(inputs, kind=c_int), targets_in_c, &
          size(targets, kind=c_int), count, loss)
    else
      status = c_model_loss_arrays(model%handle, inputs_in_c, size(inputs, kind=c_int), targets_in_c, &
          size(targets, kind=c_int), count, loss)
    end if
  end function

  integer function predict_float(model, inputs, samples, outputs) result(status)
    type(troika_model), intent(in) :: model
    real(real32), intent(in), target, contiguous :: inputs(..)
    integer, intent(in), optional :: samples
    real(real32), intent(inout), target, contiguous :: outputs(..)
    status = predict_arrays(model, [troika_array("", inputs)], samples, [troika_array("", outputs)])
  end function

  integer function predict_double(model, inputs, samples, outputs) result(status)
    type(troika_model), intent(in) :: model
    real(real64), intent(in), target, contiguous :: inputs(..)
    integer, intent(in), optional :: samples
    real(real64), intent(inout), target, contiguous :: outputs(..)
    status = predict_arrays(model, [troika_array("", inputs)], samples, [troika_array("", outputs)])
  end function

  integer function predict_arrays(model, inputs, samples, outputs) result(status)
    type(troika_model), intent(in) :: model
    type(troika_array), intent(in), target :: inputs(:), outputs(:)
    integer, intent(in), optional :: samples
    type(c_array) :: inputs_in_c(size(inputs)), outputs_in_c(size(outputs))
    integer(c_int64_t) :: count
    type(refusal) :: why
    count = samples_of(model%handle, inputs, samples)
    call arrays_in_c(model%handle, troika_input, inputs, count, inputs_in_c, why)
    call arrays_in_c(model%handle, troika_output, outputs, count, outputs_in_c, why)
    if (allocated(why%error)) then
      status = c_refuse(model%handle, call_predict, why%error, why%hint)
    else
      status = c_model_predict_arrays(model%handle, inputs_in_c, size(inputs, kind=c_int), count, outputs_in_c, &
          size(outputs, kind=c_int))
    end if
  end function

  ! The derivatives of one value of an output, the first unless it is named, with respect to the inputs that `gradients` are
  ! called by: of `component`, counted from 1 in the order of the array, or without it of the sum of all values.
  integer function troika_model_input_gradients(model, inputs, gradients, samples, output, component) result(status)
    type(troika_model), intent(in) :: model
    type(troika_array), intent(in), target :: inputs(:), gradients(:)
    integer, intent(in), optional :: samples, component
    character(*), intent(in), optional :: output
    type(c_array) :: inputs_in_c(size(inputs)), gradients_in_c(size(gradients))
    character(kind=c_char, len=:), allocatable, target :: name
    type(c_ptr) :: named
    integer(c_int64_t) :: count, value
    type(refusal) :: why
    named = c_null_ptr
    value = -1
    if (present(component)) value = component - 1
    if (present(output)) then
      name = trim(output) // c_null_char
      named = c_loc(name)
    end if
    count = samples_of(model%handle, inputs, samples)
    call arrays_in_c(model%handle, troika_input, inputs, count, inputs_in_c, why)
    call arrays_in_c(model%handle, troika_input, gradients, count, gradients_in_c, why, "gradient of ")
    if (present(component)) then
      if (component < 1) then
        why%error = "component is less than 1" // c_null_char
        why%hint = "components are counted from 1, in the order of the array; without one it is the sum of all" // &
            c_null_char
      end if
    end if
    if (allocated(why%error)) then
      status = c_refuse(model%handle, call_predict, why%error, why%hint)
    else
      status = c_model_input_gradients(model%handle, inputs_in_c, size(inputs, kind=c_int), count, named, value, &
          gradients_in_c, size(gradients, kind=c_int))
    end if
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
    status = c_model_tensor(model%handle, int(role, c_int), int(index - 1, c_int), found)
    if (status /= troika_ok) return
    tensor%name = copied(found%name)
    tensor%shape = shape_of(found)
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

  ! All that training goes on from: parameters, the optimiser, the steps with their schedule, and the losses.
  integer function troika_model_save_state(model, path) result(status)
    type(troika_model), intent(in) :: model
    character(*), intent(in) :: path
    status = c_model_save_state(model%handle, trim(path) // c_null_char)
  end function

  integer function troika_model_load_state(model, path) result(status)
    type(troika_model), intent(in) :: model
    character(*), intent(in) :: path
    status = c_model_load_state(model%handle, trim(path) // c_null_char)
  end function

  function troika_last_error() result(text)
    character(:), allocatable :: text
    text = copied(c_last_error())
  end function

  function troika_last_hint() result(text)
    character(:), allocatable :: text
    text = copied(c_last_hint())
  end function

end module
