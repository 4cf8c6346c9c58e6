/* A network with several inputs and outputs, which Python has written (make_net.py), trained by a simulation: heat
 * along a rod of two materials, u_t = k u_xx. The network sees the field around each point, and the number of the
 * point's material. It learns how the point changes, and thereby how much faster one material conducts.
 *
 *   python3 make_net.py
 *   mpirun -n 2 ./materials materials.toml materials.safetensors */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <troika/troika.h>

enum { kPoints = 64, kSteps = 400 };
static const double kConducts[2] = {0.1, 0.4};

/* What a rank knows of its points. */
typedef struct Points {
  double u[kPoints + 2]; /* with mirrors at the ends: each rank has a rod of its own */
  double field[kPoints][3], change[kPoints];
  int32_t material[kPoints];
} Points;

static void check(int status) {
  if (status == TROIKA_OK) return;
  fprintf(stderr, "%s\n", troika_last_error());
  if (*troika_last_hint() != '\0') fprintf(stderr, "hint: %s\n", troika_last_hint());
  exit(status);
}

static void start(Points* points, int rank, int round) {
  for (int i = 0; i < kPoints; ++i) {
    points->u[i + 1] = sin(1.7 * (i + 1) * (round + 1)) + cos(2.9 * i + rank);
    points->material[i] = i / 16 % 2;
  }
}

static void observe(Points* points) {
  points->u[0] = points->u[1];
  points->u[kPoints + 1] = points->u[kPoints];
  for (int i = 0; i < kPoints; ++i) {
    const double* u = &points->u[i];
    for (int j = 0; j < 3; ++j) points->field[i][j] = u[j];
    points->change[i] = kConducts[points->material[i]] * (u[0] - 2 * u[1] + u[2]);
  }
}

/* What the model takes and gives, for an array of each. */
static void print_tensors(const troika_model* model) {
  static const char* const kRoles[] = {"input", "target", "output"};
  for (int role = TROIKA_INPUT; role <= TROIKA_OUTPUT; ++role) {
    int count = 0;
    check(troika_model_tensor_count(model, role, &count));
    for (int i = 0; i < count; ++i) {
      troika_tensor tensor;
      check(troika_model_tensor(model, role, i, &tensor));
      printf("%s %s: %d a point\n", kRoles[role], tensor.name, (int)tensor.values);
    }
  }
}

static void train(Points* points, int rank, troika_model* model) {
  troika_array inputs[] = {{"field", points->field, 3 * kPoints, TROIKA_DOUBLE},
                           {"material", points->material, kPoints, TROIKA_INT32}};
  troika_array targets[] = {{"change", points->change, kPoints, TROIKA_DOUBLE}};
  for (int step = 0; step < kSteps; ++step) {
    if (step % 10 == 0) start(points, rank, step / 10);
    observe(points);
    check(troika_model_step_arrays(model, inputs, 2, targets, 1, kPoints, NULL));
    for (int i = 0; i < kPoints; ++i) points->u[i + 1] += points->change[i];
  }
}

/* How much faster the second material conducts, as the network sees it. */
static double learnt_ratio(Points* points, troika_model* model) {
  double gain[kPoints];
  troika_array inputs[] = {{"field", points->field, 3 * kPoints, TROIKA_DOUBLE},
                           {"material", points->material, kPoints, TROIKA_INT32}};
  troika_array outputs[] = {{"gain", gain, kPoints, TROIKA_DOUBLE}};
  check(troika_model_predict_arrays(model, inputs, 2, kPoints, outputs, 1));
  return gain[16] / gain[0];
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 3) {
    fprintf(stderr, "usage: materials RECIPE MODEL_FILE\n");
    exit(2);
  }
  troika_session* session;
  troika_model* model;
  int rank = 0;
  check(troika_open_mpi(MPI_Comm_c2f(MPI_COMM_WORLD), NULL, &session));
  check(troika_model_create_from_file(session, argv[1], &model));
  check(troika_rank(session, &rank));
  if (rank == 0) print_tensors(model);

  Points points;
  train(&points, rank, model);
  const double ratio = learnt_ratio(&points, model);
  check(troika_model_save(model, argv[2]));

  double losses[kSteps], rate = 0;
  int64_t count = 0;
  check(troika_model_losses(model, kSteps, losses, &count));
  check(troika_model_learning_rate(model, &rate));
  if (rank == 0) {
    printf("loss %.2g before, %.2g after %d steps, the last at a rate of %.2g; ratio %.3f\n", losses[0],
           losses[count - 1], (int)count, rate, ratio);
  }
  const int well = fabs(ratio - kConducts[1] / kConducts[0]) < 0.05;
  check(troika_model_free(model));
  check(troika_close(session));
  MPI_Finalize();
  return well ? EXIT_SUCCESS : EXIT_FAILURE;
}
