/* A simulation that trains a network on what it computes, while it computes it.
 *
 * Heat and growth along a rod, u_t = u_xx + u (1 - u) (Fisher 1937), on a grid that is cut among the ranks of the
 * program's own communicator. In every step each rank has the neighbourhoods (u[i-1], u[i], u[i+1]) of its points
 * and how those points have changed; all ranks together take one step of the optimiser on them. In the end the
 * network has to predict a field that it has not seen.
 *
 *   mpirun -n 2 ./simulation surrogate.toml surrogate.safetensors */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <troika/troika.h>

enum { kPoints = 64, kSteps = 600 };
static const double kTimeStep = 0.1;
static const double kScale = 40; /* of the targets, so that what the network learns is about as large as 1 */

/* With a ghost point at either end. */
typedef struct Rod {
  MPI_Comm communicator;
  int rank, size;
  double u[kPoints + 2];
} Rod;

static void check(int status) {
  if (status == TROIKA_OK) return;
  fprintf(stderr, "%s\n", troika_last_error());
  if (*troika_last_hint() != '\0') fprintf(stderr, "hint: %s\n", troika_last_hint());
  /* Ends the job, too. After MPI_Abort() the launcher of MPICH may lose what has just been written. */
  exit(status);
}

/* The ends of the rod are mirrors. */
static void exchange_ghosts(Rod* rod) {
  const int left = rod->rank > 0 ? rod->rank - 1 : MPI_PROC_NULL;
  const int right = rod->rank + 1 < rod->size ? rod->rank + 1 : MPI_PROC_NULL;
  rod->u[0] = rod->u[1];
  rod->u[kPoints + 1] = rod->u[kPoints];
  MPI_Sendrecv(&rod->u[kPoints], 1, MPI_DOUBLE, right, 0, &rod->u[0], 1, MPI_DOUBLE, left, 0, rod->communicator,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(&rod->u[1], 1, MPI_DOUBLE, left, 1, &rod->u[kPoints + 1], 1, MPI_DOUBLE, right, 1, rod->communicator,
               MPI_STATUS_IGNORE);
}

static void start(Rod* rod, int mode) {
  for (int i = 0; i < kPoints; ++i) {
    const double x = (rod->rank * kPoints + i + 0.5) / (rod->size * kPoints);
    rod->u[i + 1] = 0.5 + 0.45 * cos(3.14159265358979 * mode * x);
  }
}

/* What a step is about to change, and from which neighbourhood: rows of the caller's own arrays. */
static void observe(Rod* rod, double (*inputs)[3], double* changes) {
  exchange_ghosts(rod);
  for (int i = 0; i < kPoints; ++i) {
    const double* u = &rod->u[i];
    inputs[i][0] = u[0];
    inputs[i][1] = u[1];
    inputs[i][2] = u[2];
    changes[i] = kScale * kTimeStep * (u[0] - 2 * u[1] + u[2] + u[1] * (1 - u[1]));
  }
}

static void advance(Rod* rod, const double* changes) {
  for (int i = 0; i < kPoints; ++i) rod->u[i + 1] += changes[i] / kScale;
}

static void train(Rod* rod, troika_model* model, double* first, double* last) {
  double inputs[kPoints][3], changes[kPoints];
  for (int step = 0; step < kSteps; ++step) {
    if (step % 20 == 0) start(rod, 1 + step / 20 % 8);
    observe(rod, inputs, changes);
    check(troika_model_step(model, inputs, changes, kPoints, TROIKA_DOUBLE, last));
    if (step == 0) *first = *last;
    advance(rod, changes);
  }
}

/* The largest error on a field that was never trained on, over all ranks. */
static double error_of(Rod* rod, troika_session* session, troika_model* model) {
  double inputs[kPoints][3], changes[kPoints], predicted[kPoints], error = 0;
  start(rod, 5);
  for (int i = 1; i <= kPoints; ++i) rod->u[i] *= 0.9;
  observe(rod, inputs, changes);
  check(troika_model_predict(model, inputs, kPoints, TROIKA_DOUBLE, predicted));
  for (int i = 0; i < kPoints; ++i) error = fmax(error, fabs(predicted[i] - changes[i]));
  check(troika_all_reduce(session, &error, 1, TROIKA_DOUBLE, TROIKA_MAX, "largest error"));
  return error;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 3) {
    fprintf(stderr, "usage: simulation RECIPE MODEL_FILE\n");
    exit(2);
  }
  Rod rod;
  MPI_Comm_dup(MPI_COMM_WORLD, &rod.communicator);
  MPI_Comm_rank(rod.communicator, &rod.rank);
  MPI_Comm_size(rod.communicator, &rod.size);

  troika_session* session;
  troika_model* model;
  check(troika_open_mpi(MPI_Comm_c2f(rod.communicator), NULL, &session));
  check(troika_model_create_from_file(session, argv[1], &model));
  double first = 0, last = 0;
  train(&rod, model, &first, &last);
  const double error = error_of(&rod, session, model);
  check(troika_model_save(model, argv[2]));

  /* The file holds all of it: another model, read from it, predicts the same. */
  troika_model* again;
  check(troika_model_create_from_file(session, argv[1], &again));
  check(troika_model_load(again, argv[2]));
  const double error_again = error_of(&rod, session, again);

  if (rod.rank == 0) {
    printf("%d ranks: loss %.3g before, %.3g after %d steps; largest error %.3g of changes up to 1\n", rod.size,
           first, last, kSteps, error);
  }
  const int well = last < first / 20 && error < 0.25 && error == error_again;
  if (!well && rod.rank == 0) fprintf(stderr, "it has not learnt, or not been saved: %g\n", error_again);
  check(troika_model_free(again));
  check(troika_model_free(model));
  check(troika_close(session));
  MPI_Comm_free(&rod.communicator);
  MPI_Finalize();
  return well ? EXIT_SUCCESS : EXIT_FAILURE;
}
