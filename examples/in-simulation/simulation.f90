! simulation.c in Fortran: heat and growth along a rod, u_t = u_xx + u (1 - u), and a network that learns, while the
! simulation runs, how a point changes from itself and its two neighbours.
!
!   mpirun -n 2 ./simulation_fortran surrogate.toml surrogate.safetensors
program simulation
  use, intrinsic :: iso_fortran_env, only: error_unit, real64
  use mpi
  use troika
  implicit none

  integer, parameter :: points = 64, steps = 600
  real(real64), parameter :: time_step = 0.1_real64, scaling = 40, pi = 3.14159265358979_real64
  integer :: communicator, rank, ranks, failed
  real(real64) :: u(0:points + 1), first, last, error, error_again
  character(1000) :: recipe, file
  type(troika_session) :: session
  type(troika_model) :: model, again
  logical :: well

  call mpi_init(failed)
  call get_command_argument(1, recipe)
  call get_command_argument(2, file)
  call mpi_comm_dup(mpi_comm_world, communicator, failed)
  call mpi_comm_rank(communicator, rank, failed)
  call mpi_comm_size(communicator, ranks, failed)

  call check(troika_open_mpi(communicator, session))
  call check(troika_model_create_from_file(session, recipe, model))
  call train()
  error = error_of(model)
  call check(troika_model_save(model, file))

  ! The file holds all of it: another model, read from it, predicts the same.
  call check(troika_model_create_from_file(session, recipe, again))
  call check(troika_model_load(again, file))
  error_again = error_of(again)

  if (rank == 0) print "(i0, a, es9.2, a, es9.2, a, i0, a, es9.2, a)", ranks, " ranks: loss", first, " before,", last, &
      " after ", steps, " steps; largest error", error, " of changes up to 1"
  well = last < first / 20 .and. error < 0.25 .and. error == error_again
  call check(troika_model_free(again))
  call check(troika_model_free(model))
  call check(troika_close(session))
  call mpi_finalize(failed)
  if (.not. well) error stop "it has not learnt, or not been saved"

contains

  subroutine check(status)
    integer, intent(in) :: status
    if (status == troika_ok) return
    write (error_unit, "(a)") troika_last_error()
    if (len(troika_last_hint()) > 0) write (error_unit, "(a)") "hint: " // troika_last_hint()
    ! Ends the job, too. After mpi_abort() the launcher of MPICH may lose what has just been written.
    stop status, quiet=.true.
  end subroutine

  ! The ends of the rod are mirrors.
  subroutine exchange_ghosts()
    integer :: left, right, status(mpi_status_size)
    left = merge(rank - 1, mpi_proc_null, rank > 0)
    right = merge(rank + 1, mpi_proc_null, rank + 1 < ranks)
    u(0) = u(1)
    u(points + 1) = u(points)
    call mpi_sendrecv(u(points), 1, mpi_double_precision, right, 0, u(0), 1, mpi_double_precision, left, 0, &
        communicator, status, failed)
    call mpi_sendrecv(u(1), 1, mpi_double_precision, left, 1, u(points + 1), 1, mpi_double_precision, right, 1, &
        communicator, status, failed)
  end subroutine

  subroutine start(mode)
    integer, intent(in) :: mode
    integer :: i
    do i = 1, points
      u(i) = 0.5 + 0.45 * cos(pi * mode * (rank * points + i - 0.5_real64) / (ranks * points))
    end do
  end subroutine

  subroutine observe(inputs, changes)
    real(real64), intent(out) :: inputs(3, points), changes(points)
    integer :: i
    call exchange_ghosts()
    do i = 1, points
      inputs(:, i) = u(i - 1:i + 1)
      changes(i) = scaling * time_step * (u(i - 1) - 2 * u(i) + u(i + 1) + u(i) * (1 - u(i)))
    end do
  end subroutine

  subroutine train()
    real(real64) :: inputs(3, points), changes(points)
    integer :: step
    do step = 0, steps - 1
      if (mod(step, 20) == 0) call start(1 + mod(step / 20, 8))
      call observe(inputs, changes)
      call check(troika_model_step(model, inputs, changes, loss=last))
      if (step == 0) first = last
      u(1:points) = u(1:points) + changes / scaling
    end do
  end subroutine

  ! The largest error on a field that was never trained on, over all ranks.
  real(real64) function error_of(tried)
    type(troika_model), intent(in) :: tried
    real(real64) :: inputs(3, points), changes(points), predicted(points)
    call start(5)
    u(1:points) = 0.9 * u(1:points)
    call observe(inputs, changes)
    call check(troika_model_predict(tried, inputs, outputs=predicted))
    error_of = maxval(abs(predicted - changes))
    call check(troika_all_reduce(session, error_of, troika_max, "largest error"))
  end function

end program
