! materials.c in Fortran: a network with several inputs and outputs, which Python has written, learns how points of a
! rod of two materials change.
!
!   python3 make_net.py
!   mpirun -n 2 ./materials_fortran materials.toml materials.safetensors
program materials
  use, intrinsic :: iso_fortran_env, only: error_unit, int32, real64
  use mpi
  use troika
  implicit none

  integer, parameter :: points = 64, steps = 400
  real(real64), parameter :: conducts(0:1) = [0.1_real64, 0.4_real64]
  character(6), parameter :: roles(0:2) = ["input ", "target", "output"]
  real(real64) :: u(0:points + 1), field(3, points), change(points), gain(points), rate, ratio
  real(real64), allocatable :: losses(:)
  integer(int32) :: material(points)
  integer :: rank, failed
  character(1000) :: recipe, file
  type(troika_session) :: session
  type(troika_model) :: model

  call mpi_init(failed)
  call get_command_argument(1, recipe)
  call get_command_argument(2, file)
  call check(troika_open_mpi(mpi_comm_world, session))
  call check(troika_model_create_from_file(session, recipe, model))
  call check(troika_rank(session, rank))
  if (rank == 0) call print_tensors()

  call train()
  call check(troika_model_predict(model, &
      [troika_array("field", field), troika_array("material", material)], points, [troika_array("gain", gain)]))
  ratio = gain(17) / gain(1)
  call check(troika_model_save(model, file))

  call check(troika_model_losses(model, losses))
  call check(troika_model_learning_rate(model, rate))
  if (rank == 0) print "(a, es8.1, a, es8.1, a, i0, a, es8.1, a, f6.3)", "loss", losses(1), " before,", &
      losses(size(losses)), " after ", size(losses), " steps, the last at a rate of", rate, "; ratio", ratio
  call check(troika_model_free(model))
  call check(troika_close(session))
  call mpi_finalize(failed)
  if (abs(ratio - conducts(1) / conducts(0)) > 0.05) error stop "it has not learnt"

contains

  subroutine check(status)
    integer, intent(in) :: status
    if (status == troika_ok) return
    write (error_unit, "(a)") troika_last_error()
    if (len(troika_last_hint()) > 0) write (error_unit, "(a)") "hint: " // troika_last_hint()
    stop status, quiet=.true.
  end subroutine

  ! What the model takes and gives, for an array of each.
  subroutine print_tensors()
    type(troika_tensor) :: tensor
    integer :: role, i, count
    do role = troika_input, troika_output
      call check(troika_model_tensor_count(model, role, count))
      do i = 1, count
        call check(troika_model_tensor(model, role, i, tensor))
        print "(a, 1x, a, a, i0, a)", trim(roles(role)), tensor%name, ": ", tensor%values, " a point"
      end do
    end do
  end subroutine

  subroutine start(round)
    integer, intent(in) :: round
    integer :: i
    do i = 1, points
      u(i) = sin(1.7_real64 * i * (round + 1)) + cos(2.9_real64 * (i - 1) + rank)
      material(i) = mod((i - 1) / 16, 2)
    end do
  end subroutine

  ! Each rank has a rod of its own, with mirrors at its ends.
  subroutine observe()
    integer :: i
    u(0) = u(1)
    u(points + 1) = u(points)
    do i = 1, points
      field(:, i) = u(i - 1:i + 1)
      change(i) = conducts(material(i)) * (u(i - 1) - 2 * u(i) + u(i + 1))
    end do
  end subroutine

  subroutine train()
    real(real64) :: loss
    integer :: step
    do step = 0, steps - 1
      if (mod(step, 10) == 0) call start(step / 10)
      call observe()
      call check(troika_model_step(model, [troika_array("field", field), troika_array("material", material)], &
          [troika_array("change", change)], points, loss))
      u(1:points) = u(1:points) + change
    end do
  end subroutine

end program
