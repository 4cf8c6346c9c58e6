! Burgers' equation, u_t + u u_x = 0.05 u_xx, on [-1, 1], with u = 0 at both ends: a wave that steepens. The program
! computes it in finite differences. Only every sixteenth point is measured. In every time step a network learns u(x, t) from
! what has been measured up to then, and from the equation, whose residual has to vanish at any point.
! In the end it has to know the points between, which nobody has shown it.
!
!   mpirun -n 2 ./burgers_fortran burgers.toml burgers.safetensors
program burgers
  use, intrinsic :: iso_fortran_env, only: error_unit, real64
  use, intrinsic :: ieee_arithmetic, only: ieee_value, ieee_quiet_nan
  use mpi
  use troika
  implicit none

  integer, parameter :: points = 128, apart = 16, time_steps = 100, samples = 48
  integer, parameter :: learning_steps = 2000 / time_steps
  real(real64), parameter :: viscosity = 0.05_real64, spacing = 2.0_real64 / points, pi = 3.14159265358979_real64
  real(real64), parameter :: duration = 1, time_step = duration / time_steps
  real(real64) :: history(0:points, 0:time_steps), first, last, error
  integer :: rank, ranks, failed, step
  character(1000) :: recipe, file
  type(troika_session) :: session
  type(troika_model) :: model

  call mpi_init(failed)
  call get_command_argument(1, recipe)
  call get_command_argument(2, file)
  call check(troika_open_mpi(mpi_comm_world, session))
  call check(troika_model_create_from_file(session, recipe, model))
  call check(troika_rank(session, rank))
  call check(troika_size(session, ranks))

  call start_draws()
  call begin()
  do step = 1, time_steps
    history(:, step) = advanced(history(:, step - 1))
    call learn(step)
  end do
  error = error_between()
  call check(troika_model_save(model, file))
  if (rank == 0) print "(i0, a, es9.2, a, es9.2, a, i0, a, f6.3)", ranks, " ranks: loss", first, " before,", last, &
      " after ", time_steps, " time steps; largest error between the measured points", error
  call check(troika_model_free(model))
  call check(troika_close(session))
  call mpi_finalize(failed)
  if (.not. (last < first / 20 .and. error < 0.15)) error stop "it has not learnt"

contains

  subroutine check(status)
    integer, intent(in) :: status
    if (status == troika_ok) return
    write (error_unit, "(a)") troika_last_error()
    if (len(troika_last_hint()) > 0) write (error_unit, "(a)") "hint: " // troika_last_hint()
    stop status, quiet=.true.
  end subroutine

  ! Other points on each rank, and the same in each run.
  subroutine start_draws()
    integer, allocatable :: seed(:)
    integer :: size
    call random_seed(size=size)
    allocate (seed(size))
    seed = 1000 + rank
    call random_seed(put=seed)
  end subroutine

  real(real64) function place(i)
    integer, intent(in) :: i
    place = -1 + i * spacing
  end function

  subroutine begin()
    integer :: i
    do i = 0, points
      history(i, 0) = -sin(pi * place(i))
    end do
  end subroutine

  ! A time step in finite differences, as small steps as they need.
  function advanced(from) result(u)
    real(real64), intent(in) :: from(0:points)
    real(real64) :: u(0:points), change(points - 1)
    integer, parameter :: parts = 10
    integer :: part
    u = from
    do part = 1, parts
      change = viscosity * (u(:points - 2) - 2 * u(1:points - 1) + u(2:)) / spacing ** 2 &
          - (u(2:) ** 2 - u(:points - 2) ** 2) / (4 * spacing)
      u(1:points - 1) = u(1:points - 1) + time_step / parts * change
    end do
    u(0) = 0
    u(points) = 0
  end function

  ! One third of the samples are at the beginning, one third where it is measured, and one third anywhere.
  subroutine learn(now)
    integer, intent(in) :: now
    real(real64) :: where_when(2, samples), measured(samples), drawn(2)
    integer :: turn, i, x, t
    do turn = 1, learning_steps
      do i = 1, samples
        call random_number(drawn)
        x = nint(drawn(1) * points)
        t = nint(drawn(2) * now)
        if (mod(i, 3) == 0) t = 0
        if (mod(i, 3) == 1) x = apart * nint(drawn(1) * points / apart)
        where_when(:, i) = [place(x), t * time_step]
        measured(i) = history(x, t)
        if (mod(i, 3) == 2) then
          where_when(:, i) = [2 * drawn(1) - 1, drawn(2) * now * time_step]
          measured(i) = ieee_value(measured(i), ieee_quiet_nan)
        end if
      end do
      call check(troika_model_step(model, where_when, measured, loss=last))
      if (now == 1 .and. turn == 1) first = last
    end do
  end subroutine

  ! Over all points of the last three quarters of the time, each rank at some of the times.
  real(real64) function error_between()
    real(real64) :: where_when(2, 0:points), u(0:points)
    integer :: i, t
    error_between = 0
    do t = time_steps / 4 + rank, time_steps, ranks
      do i = 0, points
        where_when(:, i) = [place(i), t * time_step]
      end do
      call check(troika_model_predict(model, [troika_array("features", where_when)], points + 1, [troika_array("u", u)]))
      error_between = max(error_between, maxval(abs(u - history(:, t))))
    end do
    call check(troika_all_reduce(session, error_between, troika_max, "largest error"))
  end function

end program
