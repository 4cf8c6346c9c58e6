! Calls of the module `troika`, right and wrong, each with what it returns and what it leaves in the caller's variables:
! "case|status|value|error|hint", a line a call, in a file for each rank. fortran_test.py says what has to be in them.
!
!   mpirun -n 2 ./calls FOLDER     (with points.toml and images.toml)
program calls
  use, intrinsic :: ieee_arithmetic, only: ieee_quiet_nan, ieee_value
  use, intrinsic :: ieee_exceptions, only: ieee_all, ieee_get_flag, ieee_get_halting_mode, ieee_set_flag
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use mpi
  use troika
  implicit none

  integer, parameter :: points = 64
  real(real64), parameter :: untouched = -9
  type(troika_session) :: session
  type(troika_model) :: model
  real(real64) :: x(3, points), y(1, points), loss
  integer :: rank, ranks, failed, lines
  character(1000) :: folder
  character(12) :: name

  call mpi_init(failed)
  call mpi_comm_rank(mpi_comm_world, rank, failed)
  call mpi_comm_size(mpi_comm_world, ranks, failed)
  call get_command_argument(1, folder)
  write (name, "(a, i0)") "rank-", rank
  open (newunit=lines, file=trim(folder) // "/" // name, status="replace", action="write")

  call options()
  call say("open", troika_open_mpi(mpi_comm_world, session, &
      troika_options(engine="shm", timeout_seconds=60, recorders=trim(folder) // "/recorders")))
  call say("create", troika_model_create_from_file(session, trim(folder) // "/points.toml", model))
  call observe()
  call whole()
  call sizes_that_are_wrong()
  call shapes()
  call sections()
  call one_rank_is_wrong()
  call say("save", troika_model_save(model, trim(folder) // "/points.safetensors"))
  call state()
  call derivatives()
  call free_model(model)
  call images()
  call reductions()
  call say("close", troika_close(session))
  if (ranks > 1) call late()
  close (lines)
  call mpi_finalize(failed)

contains

  ! The slope at the first point along the first feature, beside a difference.
  subroutine derivatives()
    real(real64) :: slopes(3, points), small(2), above(1, points), below(1, points), moved(3, points)
    real(real64), parameter :: h = 1e-6_real64
    slopes = untouched
    call say("derivatives", troika_model_input_gradients(model, [troika_array("features", x)], &
        [troika_array("features", slopes)], output="outputs", component=1))
    moved = x
    moved(1, 1) = x(1, 1) + h
    call say("above", troika_model_predict(model, moved, points, above))
    moved(1, 1) = x(1, 1) - h
    call say("below", troika_model_predict(model, moved, points, below))
    call say("slope", troika_ok, slopes(1, 1) - (above(1, 1) - below(1, 1)) / (2 * h))
    small = untouched
    slopes = untouched
    call say("no component", troika_model_input_gradients(model, [troika_array("features", x)], &
        [troika_array("features", slopes)], component=0), slopes(1, 1))
    call say("slopes too few", troika_model_input_gradients(model, [troika_array("features", x)], &
        [troika_array("features", small)]), small(1))
  end subroutine

  ! A model that has loaded the state of another goes on as that one does.
  subroutine state()
    type(troika_model) :: again
    integer(int64) :: steps
    real(real64) :: nothing(3, points)
    call say("save the state", troika_model_save_state(model, trim(folder) // "/state.safetensors"))
    call say("create again", troika_model_create_from_file(session, trim(folder) // "/points.toml", again))
    call say("load the state", troika_model_load_state(again, trim(folder) // "/state.safetensors"))
    call say("count the steps", troika_model_steps(again, steps), real(steps, real64))
    call say("loss with the state", troika_model_loss(again, x, y, points, loss), loss)
    call say("load no state", troika_model_load_state(again, trim(folder) // "/points.safetensors"))
    nothing = ieee_value(nothing, ieee_quiet_nan)
    call say("name", troika_model_set_name(again, "again  "))
    call say("not a number, by name", troika_model_step(again, nothing, y))
    call free_model(again)
  end subroutine

  subroutine say(title, status, value)
    character(*), intent(in) :: title
    integer, intent(in) :: status
    real(real64), intent(in), optional :: value
    character(40) :: number
    number = ""
    if (present(value)) write (number, "(es25.17)") value
    if (status == troika_ok) then
      write (lines, "(a, '|', i0, '|', a, '||')") title, status, trim(adjustl(number))
    else
      write (lines, "(a, '|', i0, '|', a, '|', a, '|', a)") title, status, trim(adjustl(number)), troika_last_error(), &
          troika_last_hint()
    end if
  end subroutine

  subroutine free_model(own)
    type(troika_model), intent(inout) :: own
    call say("free", troika_model_free(own))
  end subroutine

  ! Each rank has points of its own.
  subroutine observe()
    integer :: i, point
    do i = 1, points
      point = rank * points + i
      x(:, i) = [sin(real(point, real64)), cos(real(point, real64)), 0.01_real64 * point]
      y(1, i) = x(1, i) * x(2, i)
    end do
  end subroutine

  subroutine options()
    type(troika_session) :: own
    call say("engine", troika_open_alone(own, troika_options(engine="tcp")))
    call say("time-out", troika_open(own, troika_options(timeout_seconds=-1)))
    call say("rendezvous time-out", &
        troika_open_mpi(mpi_comm_self, own, troika_options(rendezvous_timeout_seconds=-0.5_real64)))
    call say("threads", troika_open_alone(own, troika_options(threads=-2)))
    call say("session never opened", troika_barrier(own))
    call say("model never made", troika_model_step(model, x, y))
    call say("defaults", troika_open_alone(own, troika_options()))
    call say("close", troika_close(own))
  end subroutine

  ! Right calls in all their forms give one loss.
  subroutine whole()
    real(real64) :: flat(3 * points), grid(3, 8, 8), square(8, 8), found(points), sums
    integer(int64) :: steps
    flat = reshape(x, [3 * points])
    grid = reshape(x, [3, 8, 8])
    square = reshape(y, [8, 8])
    call say("loss", troika_model_loss(model, x, y, points, loss), loss)
    call say("loss without samples", troika_model_loss(model, x, y, loss=loss), loss)
    call say("loss of a list", troika_model_loss(model, flat, y, loss=loss), loss)
    call say("loss of a grid", troika_model_loss(model, grid, square, points, loss), loss)
    call say("loss of a grid without samples", troika_model_loss(model, grid, square, loss=loss), loss)
    call say("loss by name", troika_model_loss(model, [troika_array("features", grid)], &
        [troika_array("targets", square)], loss=loss), loss)
    call assumed(x, y, points)
    call say("predict", troika_model_predict(model, x, outputs=found))
    sums = sum((found - y(1, :))**2) / points
    call say("mean square", troika_all_reduce(session, sums, troika_average), sums)
    call say("no samples here", troika_model_loss(model, x(:, 1:merge(points, 0, rank == 0)), &
        y(:, 1:merge(points, 0, rank == 0)), loss=loss), loss)
    call say("loss in real32", troika_model_loss(model, real(x, real32), real(y, real32), loss=loss), loss)
    call say("step", troika_model_step(model, x, y, points, loss), loss)
    call say("step without loss", troika_model_step(model, x, y))
    call say("steps", troika_model_steps(model, steps), real(steps, real64))
    call say("loss after", troika_model_loss(model, x, y, loss=loss), loss)
  end subroutine

  subroutine assumed(inputs, targets, count)
    real(real64), intent(in) :: inputs(3, *), targets(*)
    integer, intent(in) :: count
    call say("loss of assumed size", troika_model_loss(model, inputs, targets, count, loss), loss)
    loss = untouched
    call say("assumed size without samples", troika_model_loss(model, inputs, targets, loss=loss), loss)
  end subroutine

  ! Nothing outside of the caller's arrays is read or written.
  subroutine sizes_that_are_wrong()
    real(real64) :: small(points)
    real(real32) :: single(points)
    small = untouched
    call say("predict into 2", troika_model_predict(model, x, points, small(3:4)), sum(small) / points)
    call say("predict into 65", troika_model_predict(model, x(:, 1:points / 2), outputs=small(1:points / 2 + 1)), &
        sum(small) / points)
    single = real(untouched, real32)
    call say("predict in real32", troika_model_predict(model, real(x, real32), outputs=single(1:2)), &
        real(sum(single), real64) / points)
    loss = untouched
    call say("128 samples", troika_model_loss(model, x, y, 128, loss), loss)
    call say("step of 128 samples", troika_model_step(model, x, y, 128, loss), loss)
    call say("targets of 63", troika_model_step(model, x, y(:, 2:), loss=loss), loss)
    call say("numbers of no sample", troika_model_step(model, x(1:1, 1), y(1, 1), loss=loss), loss)
    call say("negative", troika_model_loss(model, x, y, -1, loss), loss)
    call say("named", troika_model_loss(model, [troika_array("features", x)], [troika_array("targets", y)], 32, loss), loss)
    call say("no such name", troika_model_loss(model, [troika_array("feature", x)], [troika_array("targets", y)], &
        loss=loss), loss)
  end subroutine

  subroutine shapes()
    real(real64) :: turned(points, 3), halves(6, points / 2), outputs(3, points)
    turned = transpose(x)
    halves = reshape(x, [6, points / 2])
    loss = untouched
    call say("turned", troika_model_loss(model, turned, y, points, loss), loss)
    call say("turned by name", troika_model_step(model, [troika_array("features", turned)], &
        [troika_array("targets", y)], points, loss), loss)
    call say("two samples a column", troika_model_loss(model, halves, y, points, loss), loss)
    call say("turned without samples", troika_model_loss(model, turned, y, loss=loss), loss)
    outputs = untouched
    call say("outputs across", troika_model_predict(model, x(:, 1:9), 9, outputs(:, 1:3)))
    call say("outputs too many", troika_model_predict(model, x, points, outputs), sum(outputs) / size(outputs))
  end subroutine

  ! By name they have to be contiguous; else the compiler makes a copy.
  subroutine sections()
    real(real64) :: wide(3, 2 * points), tall(points, 2), found(2 * points)
    wide = 1000
    wide(:, 1::2) = x
    tall(:, 2) = y(1, :)
    loss = untouched
    call say("section by name", troika_model_loss(model, [troika_array("features", wide(:, 1::2))], &
        [troika_array("targets", y)], points, loss), loss)
    call say("rows by name", troika_model_step(model, [troika_array("features", x)], &
        [troika_array("targets", wide(2, ::2))], points, loss), loss)
    call say("column by name", troika_model_loss(model, [troika_array("features", x)], &
        [troika_array("targets", tall(:, 2))], points, loss), loss)
    found = untouched
    call say("outputs by name", troika_model_predict(model, [troika_array("features", x)], points, &
        [troika_array("outputs", found(1::2))]), sum(found) / size(found))
    call say("section", troika_model_loss(model, wide(:, 1::2), y, loss=loss), loss)
    call say("outputs of a section", troika_model_predict(model, x, outputs=found(2::2)), maxval(found(1::2)))
    call say("mean square again", troika_ok, sum((found(2::2) - y(1, :))**2) / points)
  end subroutine

  ! All ranks have the error, and the session goes on.
  subroutine one_rank_is_wrong()
    real(real64) :: turned(points, 3)
    integer(int64) :: steps
    turned = transpose(x)
    loss = untouched
    if (rank == ranks - 1) then
      call say("one rank turned", troika_model_step(model, turned, y, points, loss), loss)
      call say("one rank of 63", troika_model_loss(model, x, y(1, :points - 1), points, loss), loss)
      call say("one rank strided", troika_model_step(model, [troika_array("features", x(::2, :))], &
          [troika_array("targets", y)], points, loss), loss)
      call say("one rank without a target", troika_model_step(model, [troika_array("features", x)], &
          [troika_array :: ], points, loss), loss)
    else
      call say("one rank turned", troika_model_step(model, x, y, points, loss), loss)
      call say("one rank of 63", troika_model_loss(model, x, y, points, loss), loss)
      call say("one rank strided", troika_model_step(model, x, y, points, loss), loss)
      call say("one rank without a target", troika_model_step(model, x, y, points, loss), loss)
    end if
    call say("steps since", troika_model_steps(model, steps), real(steps, real64))
    call say("loss since", troika_model_loss(model, x, y, loss=loss), loss)
  end subroutine

  ! A sample of several extents, as the model has them reversed.
  subroutine images()
    integer, parameter :: many = 4
    real(real64) :: image(8, 8, 2, many), flat(128, many), classes(many)
    type(troika_model) :: own
    integer :: i
    call say("create", troika_model_create_from_file(session, trim(folder) // "/images.toml", own))
    image = reshape([(sin(0.1_real64 * i), i = 1, size(image))], shape(image))
    flat = reshape(image, shape(flat))
    classes = [0, 1, 2, 1]
    call say("images", troika_model_loss(own, image, classes, many, loss), loss)
    call say("images of a column", troika_model_loss(own, flat, classes, loss=loss), loss)
    call say("images in parts", troika_model_loss(own, reshape(image, [4, 2, 8, 1, 2, many]), classes, many, loss), loss)
    call floating_point(own, image, classes)
    loss = untouched
    call say("channels first", troika_model_loss(own, reshape(image, [2, 8, 8, many]), classes, many, loss), loss)
    call say("samples first", troika_model_loss(own, reshape(image, [many, 8, 8, 2]), classes, many, loss), loss)
    call say("images too few", troika_model_loss(own, image(:, :, :, 1:3), classes, many, loss), loss)
    call say("classes that are none", troika_model_loss(own, image, classes + 1, many, loss), loss)
    call free_model(own)
  end subroutine

  ! Flags and traps are as they were: invalid operations, overflow and division by zero end this program.
  subroutine floating_point(own, image, classes)
    type(troika_model), intent(in) :: own
    real(real64), intent(in) :: image(:, :, :, :), classes(:)
    logical :: raised(size(ieee_all)), traps(size(ieee_all))
    integer :: status
    call ieee_set_flag(ieee_all, .false.)
    status = troika_model_step(own, image, classes)
    call ieee_get_flag(ieee_all, raised)
    call ieee_get_halting_mode(ieee_all, traps)
    call say("floating point", status, real(10 * count(raised) + count(traps), real64))
  end subroutine

  subroutine reductions()
    integer(int32) :: whole(2, 2)
    integer(int64) :: large, list(3)
    real(real32) :: single
    real(real64) :: values(4)
    whole = rank + 1
    call say("sum of int32", troika_all_reduce(session, whole), real(sum(whole), real64))
    whole = rank
    call say("largest int32", troika_all_reduce(session, whole(1, 1), troika_max, "largest"), real(whole(1, 1), real64))
    ! A real64 has no such number.
    large = 2_int64**53 + 1 + 2 * rank
    call say("smallest int64", troika_all_reduce(session, large, troika_min), real(large - 2_int64**53, real64))
    list = rank + 2_int64**40
    call say("sum of int64", troika_all_reduce(session, list, label="sum"), real(sum(list) - 3 * ranks * 2_int64**40, real64))
    whole(:, 2) = rank + 7
    call say("broadcast of int32", troika_broadcast(session, whole(:, 2), ranks - 1), real(sum(whole(:, 2)), real64))
    large = rank + 5
    call say("broadcast of int64", troika_broadcast(session, large), real(large, real64))
    single = real(rank, real32)
    call say("broadcast of real32", troika_broadcast(session, single, label="from the first"), real(single, real64))
    values = rank + 1
    call say("sum of a section", troika_all_reduce(session, values(1::2)), sum(values) - 2 * (rank + 1))
    call say("barrier", troika_barrier(session))
    call say("barrier with a label", troika_barrier(session, "before the end"))
    call say("no such reduction", troika_all_reduce(session, values, 4), sum(values) - 2 * (rank + 1))
  end subroutine

  ! One rank does not come before the time-out that the session was opened with.
  subroutine late()
    type(troika_session) :: own
    real(real64) :: value
    value = untouched
    call say("open", troika_open_mpi(mpi_comm_world, own, troika_options(timeout_seconds=1)))
    if (rank > 0) call say("late", troika_all_reduce(own, value, troika_max, "exchange"), value)
    call mpi_barrier(mpi_comm_world, failed)
    if (rank == 0) call say("late", troika_all_reduce(own, value, troika_max, "exchange"), value)
    call mpi_barrier(mpi_comm_world, failed)
    call say("close after", troika_close(own))
  end subroutine

end program
