/* Times MPI_Allreduce as `troika bench comm` times ours: a repeat is a run of operations between a barrier and a
 * check of what has come out; the slowest rank counts; the median over the repeats is what is printed.
 *
 *   mpicc -O2 mpi_all_reduce.c -o mpi_all_reduce
 *   mpirun -n 2 ./mpi_all_reduce 0.5 4 4096 67108864        budget in seconds, then sizes in bytes
 *
 * One line a size: bytes, seconds in place, seconds with a tensor for the result of its own. */
#include <float.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kFewestWarmUps = 2, kFewest = 5, kMost = 10000 };

static int rank, ranks;

static float pattern(long i) { return (float)(i % 13 + 1); }

/* The time of one of `times` operations. */
static double repeat(float* input, float* output, long count, int times, int in_place) {
  for (long i = 0; i < count; ++i) {
    input[i] = pattern(i) * (float)(rank + 1);
    output[i] = in_place ? input[i] : NAN;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < times; ++i) {
    MPI_Allreduce(in_place ? MPI_IN_PLACE : (void*)input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  const double time = (MPI_Wtime() - start) / times;
  MPI_Barrier(MPI_COMM_WORLD); /* nobody checks on a core that another rank still needs for what is timed */
  const double factor = ranks * (ranks + 1) / 2.0 * (in_place ? pow(ranks, times - 1) : 1);
  for (long i = 0; i < count; ++i) {
    if (!(fabs(output[i] - pattern(i) * factor) <= 1e-5 * pattern(i) * factor)) {
      fprintf(stderr, "rank %d: element %ld is %g instead of %g\n", rank, i, output[i], pattern(i) * factor);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  return time;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static int within(double value, int low, int high) {
  return value < low ? low : value > high ? high : (int)value;
}

static double median_of(float* input, float* output, long count, double budget, int in_place) {
  const int most = ranks > 1 ? (int)(80 / log(ranks)) : 100;
  const int warm_up = most < 10 ? most : 10;
  double once = 0, spent = 0;
  for (int i = 0; i < kFewestWarmUps || spent < budget / 3; ++i, spent += once * warm_up) {
    once = repeat(input, output, count, warm_up, in_place);
    MPI_Allreduce(MPI_IN_PLACE, &once, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
  const int times = within(0.02 / once, 1, most);
  const int repeats = within(budget / (once * times), kFewest, kMost);
  double all[kMost];
  for (int i = 0; i < repeats; ++i) all[i] = repeat(input, output, count, times, in_place);
  MPI_Allreduce(MPI_IN_PLACE, all, repeats, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  qsort(all, (size_t)repeats, sizeof(double), ascending);
  return all[repeats / 2];
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const double budget = argc > 1 ? atof(argv[1]) : 0.5;
  for (int i = 2; i < argc; ++i) {
    const long bytes = atol(argv[i]), count = bytes / (long)sizeof(float);
    float *input = malloc((size_t)bytes), *output = malloc((size_t)bytes);
    if (!input || !output || count < 1) MPI_Abort(MPI_COMM_WORLD, 1);
    const double in_place = median_of(input, output, count, budget, 1);
    const double apart = median_of(input, output, count, budget, 0);
    if (rank == 0) printf("%ld %.9g %.9g\n", bytes, in_place, apart);
    free(input);
    free(output);
  }
  MPI_Finalize();
  return 0;
}
