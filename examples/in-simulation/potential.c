/* A potential that learns from energies and forces, while particles move in it.
 *
 * Walkers move on the surface of Mueller and Brown (1979), which has three valleys. In every step of the simulation all
 * ranks together take one step of the optimiser on the walkers' energies and forces. The network gives an energy, and
 * the recipe says that the forces are its negative slope: so they conserve energy, whatever it has learnt. In the
 * end walkers move by the network's forces alone.
 *
 *   mpirun -n 2 ./potential potential.toml potential.safetensors */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <troika/troika.h>

enum { kWalkers = 32, kSteps = 1500, kRestart = 25, kTrajectory = 400 };
static const double kTimeStep = 0.01;

typedef struct Walkers {
  double position[kWalkers][2], velocity[kWalkers][2], energy[kWalkers], force[kWalkers][2];
  unsigned long long draws;
} Walkers;

static void check(int status) {
  if (status == TROIKA_OK) return;
  fprintf(stderr, "%s\n", troika_last_error());
  if (*troika_last_hint() != '\0') fprintf(stderr, "hint: %s\n", troika_last_hint());
  exit(status);
}

/* The surface, scaled so that energies are about as large as 1. */
static void surface(const double position[2], double* energy, double force[2]) {
  static const double kDepth[4] = {-200, -100, -170, 15}, kA[4] = {-1, -1, -6.5, 0.7}, kB[4] = {0, 0, 11, 0.6},
                      kC[4] = {-10, -10, -6.5, 0.7}, kX[4] = {1, 0, -0.5, -1}, kY[4] = {0, 0.5, 1.5, 1};
  *energy = force[0] = force[1] = 0;
  for (int i = 0; i < 4; ++i) {
    const double x = position[0] - kX[i], y = position[1] - kY[i];
    const double part = kDepth[i] / 50 * exp(kA[i] * x * x + kB[i] * x * y + kC[i] * y * y);
    *energy += part;
    force[0] -= part * (2 * kA[i] * x + kB[i] * y);
    force[1] -= part * (kB[i] * x + 2 * kC[i] * y);
  }
}

static double draw(Walkers* walkers) { /* in [0, 1) */
  walkers->draws = walkers->draws * 6364136223846793005ULL + 1442695040888963407ULL;
  return (double)(walkers->draws >> 11) / 9007199254740992.0;
}

/* At rest, anywhere in the valleys. */
static void start(Walkers* walkers) {
  memset(walkers->velocity, 0, sizeof walkers->velocity);
  for (int i = 0; i < kWalkers; ++i) {
    do {
      walkers->position[i][0] = -1.5 + 2.7 * draw(walkers);
      walkers->position[i][1] = -0.3 + 2.3 * draw(walkers);
      surface(walkers->position[i], &walkers->energy[i], walkers->force[i]);
    } while (walkers->energy[i] > 0);
  }
}

static void kick(Walkers* walkers) {
  for (int i = 0; i < kWalkers; ++i) {
    for (int k = 0; k < 2; ++k) walkers->velocity[i][k] += kTimeStep / 2 * walkers->force[i][k];
  }
}

static void drift(Walkers* walkers) {
  for (int i = 0; i < kWalkers; ++i) {
    for (int k = 0; k < 2; ++k) walkers->position[i][k] += kTimeStep * walkers->velocity[i][k];
  }
}

/* Moves by the forces of the surface, and trains on them. */
static void train(Walkers* walkers, troika_model* model, double* first, double* last) {
  const troika_array inputs[] = {{"features", walkers->position, 2 * kWalkers, TROIKA_DOUBLE}};
  const troika_array targets[] = {{"energies", walkers->energy, kWalkers, TROIKA_DOUBLE},
                                  {"reference_forces", walkers->force, 2 * kWalkers, TROIKA_DOUBLE}};
  for (int step = 0; step < kSteps; ++step) {
    if (step % kRestart == 0) start(walkers);
    check(troika_model_step_arrays(model, inputs, 1, targets, 2, kWalkers, last));
    if (step == 0) *first = *last;
    kick(walkers);
    drift(walkers);
    for (int i = 0; i < kWalkers; ++i) surface(walkers->position[i], &walkers->energy[i], walkers->force[i]);
    kick(walkers);
  }
}

static void ask(Walkers* walkers, troika_model* model) {
  const troika_array inputs[] = {{"features", walkers->position, 2 * kWalkers, TROIKA_DOUBLE}};
  const troika_array outputs[] = {{"energy", walkers->energy, kWalkers, TROIKA_DOUBLE},
                                  {"forces", walkers->force, 2 * kWalkers, TROIKA_DOUBLE}};
  check(troika_model_predict_arrays(model, inputs, 1, kWalkers, outputs, 2));
}

static double total_energy(const Walkers* walkers, int i) {
  return walkers->energy[i] + 0.5 * (pow(walkers->velocity[i][0], 2) + pow(walkers->velocity[i][1], 2));
}

/* Moves by the network's forces: how far these are off, and how much the network's energy drifts. */
static void judge(Walkers* walkers, troika_model* model, double* error, double* drifted) {
  double begin[kWalkers], energy, force[2], squares = 0;
  start(walkers);
  ask(walkers, model);
  *drifted = 0;
  for (int i = 0; i < kWalkers; ++i) begin[i] = total_energy(walkers, i);
  for (int step = 0; step < kTrajectory; ++step) {
    kick(walkers);
    drift(walkers);
    ask(walkers, model);
    kick(walkers);
    for (int i = 0; i < kWalkers; ++i) {
      surface(walkers->position[i], &energy, force);
      for (int k = 0; k < 2; ++k) squares += pow(walkers->force[i][k] - force[k], 2);
      *drifted = fmax(*drifted, fabs(total_energy(walkers, i) - begin[i]));
    }
  }
  *error = sqrt(squares / (2.0 * kWalkers * kTrajectory));
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 3) {
    fprintf(stderr, "usage: potential RECIPE MODEL_FILE\n");
    exit(2);
  }
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  troika_session* session;
  troika_model* model;
  check(troika_open_mpi(MPI_Comm_c2f(MPI_COMM_WORLD), NULL, &session));
  check(troika_model_create_from_file(session, argv[1], &model));
  Walkers walkers = {.draws = 12345 + 7919ULL * (unsigned)rank};
  double first = 0, last = 0, error = 0, drifted = 0;
  train(&walkers, model, &first, &last);
  judge(&walkers, model, &error, &drifted);
  check(troika_all_reduce(session, &error, 1, TROIKA_DOUBLE, TROIKA_MAX, "error of forces"));
  check(troika_all_reduce(session, &drifted, 1, TROIKA_DOUBLE, TROIKA_MAX, "drift of energy"));
  check(troika_model_save(model, argv[2]));
  if (rank == 0) {
    printf("%d ranks: loss %.3g before, %.3g after %d steps; forces are off by %.2g, and energy drifts by %.2g\n", ranks,
           first, last, kSteps, error, drifted);
  }
  const int well = last < first / 100 && error < 0.5 && drifted < 0.1;
  if (!well && rank == 0) fprintf(stderr, "it has not learnt\n");
  check(troika_model_free(model));
  check(troika_close(session));
  MPI_Finalize();
  return well ? EXIT_SUCCESS : EXIT_FAILURE;
}
