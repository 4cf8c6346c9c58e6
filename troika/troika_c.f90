! What C has of troika, for troika.f90, which is compiled after this file: the structures and functions of troika.h,
! and the numbers of its types. Internal: programs use the module `troika`.
module troika_c
  use, intrinsic :: iso_c_binding
  implicit none
  public

  integer(c_int), parameter :: type_float = 0, type_double = 1, type_int32 = 2, type_int64 = 3
  ! The calls that c_refuse() takes part in.
  integer(c_int), parameter :: call_step = 0, call_loss = 1, call_predict = 2

  type, bind(c) :: c_options
    type(c_ptr) :: engine = c_null_ptr
    real(c_double) :: timeout_seconds = 0, rendezvous_timeout_seconds = 0
    type(c_ptr) :: recorders = c_null_ptr
    integer(c_int) :: threads = 0
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
    integer(c_int) function c_model_set_name(model, name) bind(c, name="troika_model_set_name")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: model
      character(kind=c_char) :: name(*)
    end function
    integer(c_int) function c_model_free(model) bind(c, name="troika_model_free")
      import :: c_int, c_ptr
      type(c_ptr), value :: model
    end function
    integer(c_int) function c_model_step_arrays(model, inputs, input_count, targets, target_count, samples, loss) &
        bind(c, name="troika_model_step_arrays")
      import :: c_array, c_double, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model
      type(c_array) :: inputs(*), targets(*)
      integer(c_int), value :: input_count, target_count
      integer(c_int64_t), value :: samples
      real(c_double), optional :: loss
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
    integer(c_int) function c_refuse(model, call, error, hint) bind(c, name="troika_fortran_refuse")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: model
      integer(c_int), value :: call
      character(kind=c_char) :: error(*), hint(*)
    end function
    integer(c_int) function c_model_input_gradients(model, inputs, input_count, samples, output, component, gradients, &
        gradient_count) bind(c, name="troika_model_input_gradients")
      import :: c_array, c_int, c_int64_t, c_ptr
      type(c_ptr), value :: model, output
      type(c_array) :: inputs(*), gradients(*)
      integer(c_int), value :: input_count, gradient_count
      integer(c_int64_t), value :: samples, component
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
    integer(c_int) function c_model_save_state(model, path) bind(c, name="troika_model_save_state")
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: model
      character(kind=c_char) :: path(*)
    end function
    integer(c_int) function c_model_load_state(model, path) bind(c, name="troika_model_load_state")
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

  ! The shape of a tensor in Fortran's order.
  function shape_of(tensor) result(extents)
    type(c_tensor), intent(in) :: tensor
    integer(c_int64_t) :: extents(tensor%dims)
    integer(c_int64_t), pointer :: shape(:)
    if (tensor%dims == 0) return
    call c_f_pointer(tensor%shape, shape, [tensor%dims])
    extents(:) = shape(tensor%dims:1:-1)
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
