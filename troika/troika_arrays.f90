! Arrays of Fortran as the tensors of a model's samples, for troika.f90, which is compiled after this file: by name, and
! compared with the shapes that the model has. Internal: programs use the module `troika`.
module troika_arrays
  use troika_c
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  implicit none
  private

  public :: troika_array, refusal, samples_of, arrays_in_c

  integer, parameter, public :: troika_input = 0, troika_target = 1, troika_output = 2
  character(6), parameter :: roles(0:2) = ["input ", "target", "output"]
  integer, parameter :: most_ranks = 15

  ! An array by name, of any rank and of real32, real64, int32 or int64: troika_array("field", field). No component is
  ! allocatable: compilers lose the memory of those in lists that a call is given. Without a name it is that of the
  ! only input or target, or of the first output. The last extent is -1 where the size is assumed: field(3, *).
  type :: troika_array
    private
    character(kind=c_char, len=256) :: name = c_null_char
    type(c_ptr), public :: data = c_null_ptr
    integer(c_int), public :: type = type_double
    integer :: rank = 0
    integer(c_int64_t) :: extents(most_ranks) = 1
    logical :: contiguous = .true.
  end type

  interface troika_array
    module procedure array_float, array_double, array_int32, array_int64
  end interface

  ! Why a call is refused, and what to do. Not allocated where it is not.
  type :: refusal
    character(:), allocatable :: error, hint
  end type

contains

  function array_float(name, values) result(array)
    character(*), intent(in) :: name
    real(real32), target :: values(..)
    type(troika_array) :: array
    array = array_of(name, c_loc(values), shape(values, kind=c_int64_t), is_contiguous(values), type_float)
  end function

  function array_double(name, values) result(array)
    character(*), intent(in) :: name
    real(real64), target :: values(..)
    type(troika_array) :: array
    array = array_of(name, c_loc(values), shape(values, kind=c_int64_t), is_contiguous(values), type_double)
  end function

  function array_int32(name, values) result(array)
    character(*), intent(in) :: name
    integer(int32), target :: values(..)
    type(troika_array) :: array
    array = array_of(name, c_loc(values), shape(values, kind=c_int64_t), is_contiguous(values), type_int32)
  end function

  function array_int64(name, values) result(array)
    character(*), intent(in) :: name
    integer(int64), target :: values(..)
    type(troika_array) :: array
    array = array_of(name, c_loc(values), shape(values, kind=c_int64_t), is_contiguous(values), type_int64)
  end function

  function array_of(name, data, extents, contiguous, type) result(array)
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: data
    integer(c_int64_t), intent(in) :: extents(:)
    logical, intent(in) :: contiguous
    integer(c_int), intent(in) :: type
    type(troika_array) :: array
    array%name = name(:min(len_trim(name), len(array%name) - 1)) // c_null_char
    array%data = data
    array%type = type
    array%rank = size(extents)
    array%extents(:array%rank) = extents
    array%contiguous = contiguous
  end function

  ! The number of samples of a call: what it says, or else what the first input holds. Below 0 where neither does.
  integer(c_int64_t) function samples_of(model, inputs, samples) result(count)
    type(c_ptr), intent(in) :: model
    type(troika_array), intent(in) :: inputs(:)
    integer, intent(in), optional :: samples
    type(c_tensor) :: tensor
    type(refusal) :: ignored
    count = 0
    if (present(samples)) then
      count = samples
    else if (size(inputs) > 0) then
      associate (first => inputs(1))
        if (assumes_size(first)) then
          count = -1
        else if (is_found(model, troika_input, first, tensor, ignored)) then
          count = product(first%extents) / max(tensor%values, 1_c_int64_t)
        else if (first%rank > 0) then
          count = first%extents(first%rank)
        end if
      end associate
    end if
  end function

  ! Fills `list` with the arrays as C has them, and `why` with the first of them that is not what the model takes. C
  ! compares names, types and values.
  ! `prefix` stands before the role in what is wrong: "gradient of ".
  subroutine arrays_in_c(model, role, arrays, samples, list, why, prefix)
    type(c_ptr), intent(in) :: model
    integer, intent(in) :: role
    type(troika_array), intent(in), target :: arrays(:)
    integer(c_int64_t), intent(in) :: samples
    type(c_array), intent(out) :: list(:)
    type(refusal), intent(inout) :: why
    character(*), intent(in), optional :: prefix
    character(:), allocatable :: kind
    type(c_tensor) :: tensor
    type(troika_array) :: array
    type(c_ptr) :: name
    integer :: i
    kind = trim(roles(role))
    if (present(prefix)) kind = prefix // kind
    do i = 1, size(arrays)
      array = arrays(i)
      name = c_loc(arrays(i)%name)
      if (is_found(model, role, array, tensor, why)) then
        name = tensor%name
        call check(array, kind // " '" // copied(tensor%name) // "'", tensor, samples, why)
      end if
      list(i) = c_array(name, array%data, product(array%extents), array%type)
    end do
  end subroutine

  ! True where the model has a tensor of the array's name, or one alone where the array has no name.
  logical function is_found(model, role, array, tensor, why) result(found)
    type(c_ptr), intent(in) :: model
    integer, intent(in) :: role
    type(troika_array), intent(in) :: array
    type(c_tensor), intent(out) :: tensor
    type(refusal), intent(inout) :: why
    type(c_tensor) :: each
    character(:), allocatable :: name, names
    integer(c_int) :: count, i
    integer :: needed
    logical :: named, matches
    named = array%name(1:1) /= c_null_char
    found = .false.
    needed = 0
    names = ""
    count = 0
    if (c_model_tensor_count(model, int(role, c_int), count) /= 0) return
    do i = 0, count - 1
      if (c_model_tensor(model, int(role, c_int), i, each) /= 0) return
      name = copied(each%name)
      matches = merge(array%name == name // c_null_char, i == 0, named)
      if (matches) tensor = each
      found = found .or. matches
      if (each%optional == 0) needed = needed + 1
      names = names // ", '" // name // "'"
    end do
    if (named .or. role == troika_output .or. needed == 1) return
    found = .false.
    call refuse(why, "the model has " // amount(int(count, c_int64_t), trim(roles(role))) // ":" // names(2:), &
        'give each by name: troika_array("name", values)')
  end function

  ! Checks that the array has so many samples of the tensor, and that they lie as the model reads them. Gives an array
  ! of assumed size the extent that it has then.
  subroutine check(array, title, tensor, samples, why)
    type(troika_array), intent(inout) :: array
    character(*), intent(in) :: title
    type(c_tensor), intent(in) :: tensor
    integer(c_int64_t), intent(in) :: samples
    type(refusal), intent(inout) :: why
    integer(c_int64_t) :: whole(tensor%dims + 1), count
    if (.not. array%contiguous) call refuse(why, title // " is not contiguous", &
        "give a whole array, or a section whose numbers lie side by side")
    if (assumes_size(array)) call take_extent(array, title, tensor%values * samples, why)
    if (samples < 0) return
    count = product(array%extents)
    whole = [shape_of(tensor), samples]
    if (count /= tensor%values * samples) then
      call refuse(why, title // " has " // amount(count, "value") // " for " // amount(samples, "sample"), &
          "one sample has " // amount(tensor%values, "value") // ": the array is " // text_of(whole))
    else if (.not. lies_by_samples(array, tensor)) then
      call refuse(why, title // " is " // text_of(array%extents(:array%rank)) // ", not " // text_of(whole), &
          "a sample is a column: the samples come last")
    end if
  end subroutine

  logical function assumes_size(array)
    type(troika_array), intent(in) :: array
    assumes_size = any(array%extents < 0)
  end function

  subroutine take_extent(array, title, count, why)
    type(troika_array), intent(inout) :: array
    character(*), intent(in) :: title
    integer(c_int64_t), intent(in) :: count
    type(refusal), intent(inout) :: why
    integer(c_int64_t) :: others
    array%extents(array%rank) = 1
    others = max(product(array%extents), 1_c_int64_t)
    if (count < 0) call refuse(why, title // " is of assumed size", "say how many samples there are")
    array%extents(array%rank) = max(count, 0_c_int64_t) / others
  end subroutine

  ! True unless an extent goes on from one sample into the next, or within a sample lies across the tensor's own. A
  ! list of numbers is taken as it is, and samples may have several extents: (3, 8, 8) are 64 samples of (3). The extents
  ! of a sample may be divided or joined: (3, 4, 64) and (12, 64) are 64 samples of (12) as well as of (3, 4).
  logical function lies_by_samples(array, tensor) result(lies)
    type(troika_array), intent(in) :: array
    type(c_tensor), intent(in) :: tensor
    integer(c_int64_t) :: own(array%rank), model(tensor%dims)
    integer :: length
    lies = .true.
    if (array%rank < 2 .or. any(array%extents == 0)) return
    own = leading(array%extents(:array%rank))
    model = leading(shape_of(tensor))
    do length = 0, array%rank
      if (product(array%extents(:length)) >= tensor%values) exit
    end do
    associate (sample => own(:length))
      lies = product(array%extents(:length)) == tensor%values .and. (are_among(sample, model) .or. are_among(model, sample))
    end associate
  end function

  ! How many values the first extent has, the first two, and so on.
  function leading(extents) result(counts)
    integer(c_int64_t), intent(in) :: extents(:)
    integer(c_int64_t) :: counts(size(extents))
    integer :: i
    counts = [(product(extents(:i)), i = 1, size(extents))]
  end function

  ! True where each count is one of the others; one value is no more than none.
  logical function are_among(counts, others)
    integer(c_int64_t), intent(in) :: counts(:), others(:)
    integer :: i
    are_among = all([(counts(i) == 1 .or. any(others == counts(i)), i = 1, size(counts))])
  end function

  subroutine refuse(why, error, hint)
    type(refusal), intent(inout) :: why
    character(*), intent(in) :: error, hint
    if (allocated(why%error)) return
    why%error = error // c_null_char
    why%hint = hint // c_null_char
  end subroutine

  function amount(count, noun) result(text)
    integer(c_int64_t), intent(in) :: count
    character(*), intent(in) :: noun
    character(:), allocatable :: text
    text = number(count) // " " // noun // repeat("s", merge(0, 1, count == 1))
  end function

  ! "(3, 64)"
  function text_of(extents) result(text)
    integer(c_int64_t), intent(in) :: extents(:)
    character(:), allocatable :: text
    integer :: i
    text = "("
    do i = 1, size(extents)
      text = text // number(extents(i)) // merge(", ", ") ", i < size(extents))
    end do
    text = trim(text)
  end function

  function number(value) result(text)
    integer(c_int64_t), intent(in) :: value
    character(:), allocatable :: text
    character(20) :: digits
    write (digits, "(i0)") value
    text = trim(digits)
  end function

end module
