/* troika for C, and for every language that can call C: train a model inside a program that has its
 * own processes, its own MPI communicator and its own arrays. docs/in-simulation.md is the guide,
 * with examples in C and Fortran; troika.f90, beside this file, is the same for Fortran.
 *
 *   troika_session* session;
 *   troika_model* model;
 *   troika_open_mpi(MPI_Comm_c2f(MPI_COMM_WORLD), NULL, &session);
 *   troika_model_create(session, recipe, &model);
 *   troika_model_step(model, inputs, targets, samples, TROIKA_DOUBLE, &loss);
 *
 * A model with several inputs takes them by name, as arrays of the caller's:
 *
 *   troika_array inputs[] = {{"field", field, 3 * samples, TROIKA_DOUBLE},
 *                            {"material", material, samples, TROIKA_INT32}};
 *   troika_array targets[] = {{"change", change, samples, TROIKA_DOUBLE}};
 *   troika_model_step_arrays(model, inputs, 2, targets, 1, samples, &loss);
 *
 * Every function returns TROIKA_OK or what went wrong; troika_last_error() has it in words.
 * Functions marked "collective" are called by all ranks of the session, in the same order. They
 * compare what the ranks have called before they do anything. What one rank has wrong (its recipe,
 * files, arrays, classes, counts, roots, paths) is an error on all ranks, which names the rank, and
 * the session goes on. Ranks that make different calls all get TROIKA_RENDEZVOUS, and the calls by
 * name. Only a handle that is wrong is an error on its rank alone, while the others wait for it.
 *
 * A session, with the models on it, belongs to one thread at a time. After TROIKA_RENDEZVOUS from a
 * collective call the session can only be closed. A handle is good until it is freed or closed; one
 * that is not is refused. Functions that fail to open or to create set the handle to NULL. Each
 * function leaves the thread's OpenMP threads, floating-point modes and locale as it found them. */
#ifndef TROIKA_TROIKA_H
#define TROIKA_TROIKA_H
#pragma once

#include <stdint.h>

/* NOLINTBEGIN(modernize-use-using,readability-identifier-naming): names as they are usual in C */
#ifdef __cplusplus
extern "C" {
#endif

typedef struct troika_session troika_session;
typedef struct troika_model troika_model;

/* The numbers are the exit codes of the command (docs/errors.md). */
enum troika_status {
  TROIKA_OK = 0,
  TROIKA_INTERNAL = 1,   /* a bug in troika */
  TROIKA_USAGE = 2,      /* an argument, or the recipe, also one that cannot be read */
  TROIKA_DATA = 3,       /* a model's file that is missing, or is not what it should be */
  TROIKA_RENDEZVOUS = 4, /* a rank that does not come, is gone, or passes a deadline */
  TROIKA_RANK_DIED = 5,  /* this rank's device has failed */
  TROIKA_NONFINITE = 6,  /* the loss or a gradient is not finite */
  TROIKA_STORAGE = 7     /* a file that cannot be written */
};

/* What is in a caller's array. */
enum troika_type { TROIKA_FLOAT = 0, TROIKA_DOUBLE = 1, TROIKA_INT32 = 2, TROIKA_INT64 = 3 };

enum troika_reduction { TROIKA_SUM = 0, TROIKA_AVERAGE = 1, TROIKA_MAX = 2, TROIKA_MIN = 3 };

/* Zero or NULL stands for the default. */
typedef struct troika_options {
  const char* engine;                /* "auto", "shm", "gloo", "mpi" */
  double timeout_seconds;            /* of one collective; 60 */
  double rendezvous_timeout_seconds; /* for all ranks to come; 300 */
  const char* recorders;             /* a folder for flight recorders; that of TROIKA_RECORDERS */
  int threads; /* that calls on the session compute with; OMP_NUM_THREADS, or the cores of the host
                  shared among its ranks */
} troika_options;

const char* troika_version(void);

/* What the last call of this thread that did not return TROIKA_OK had to say: one line that names
 * the culprit, and one line that says what to do, or "". They stay until the next such call. */
const char* troika_last_error(void);
const char* troika_last_hint(void);

/* Collective. The ranks are those that a launcher has started: `troika launch`, torchrun, Slurm,
 * mpirun. A process that no launcher has started is alone. `options` may be NULL. */
int troika_open(const troika_options* options, troika_session** session);
/* Collective over an MPI communicator of the program's: what MPI_Comm_c2f() returns, or the integer
 * that Fortran programs have. MPI must be initialised, and must not be finalised before the session
 * is closed. The communicator itself is not used once this has returned. */
int troika_open_mpi(int communicator, const troika_options* options, troika_session** session);
/* Of this process alone. */
int troika_open_alone(const troika_options* options, troika_session** session);
/* Collective; after TROIKA_RENDEZVOUS from a collective call it waits for no rank, else for up to
 * 300 seconds. Where another rank makes another call, both get TROIKA_RENDEZVOUS, and this session
 * is closed. While a model on the session is not freed, it returns TROIKA_USAGE and does nothing.
 * NULL is fine. */
int troika_close(troika_session* session);

int troika_rank(const troika_session* session, int* rank);
int troika_size(const troika_session* session, int* size);

/* Collective, in place, on `count` values of `type`. `label` names the operation in errors and may
 * be NULL. */
int troika_all_reduce(troika_session* session, void* values, int64_t count, int type, int reduction,
                      const char* label);
int troika_broadcast(troika_session* session, void* values, int64_t count, int type, int root,
                     const char* label);
int troika_barrier(troika_session* session, const char* label);

/* Collective. A model with its optimiser, as a recipe describes it: [model] of any kind, also with
 * `from`, and what it has of seed, [loss], [optimizer] (with lr_base_batch_size, of
 * train.global_batch_size), [train] steps (for the schedule), device, precision, grad_clip and
 * on_nonfinite. Other keys have no effect; `name` and [data] may be missing. precision "auto" is
 * fp32. All ranks must give the same recipe, and the same files that it names; they start from the
 * same parameters. */
int troika_model_create(troika_session* session, const char* recipe, troika_model** model);
int troika_model_create_from_file(troika_session* session, const char* path, troika_model** model);
/* Not collective. What errors and flight recorders call the model beside its number, in place of
 * the file of its recipe: "a step of model 2 'closure'". NULL takes the name away. */
int troika_model_set_name(troika_model* model, const char* name);
/* NULL is fine. */
int troika_model_free(troika_model* model);

/* A tensor of one sample, as the model describes it. Name and shape stay until the model is freed.
 * `type` is TROIKA_DOUBLE for values of any floating-point type, TROIKA_INT64 for whole numbers;
 * `values` is the product of the shape. With `classes` above 0 numbers are whole, from 0 to below
 * it. */
typedef struct troika_tensor {
  const char* name;
  int type;
  int dims;
  const int64_t* shape;
  int64_t values;
  int64_t classes;
  int optional; /* 1: may be left out */
} troika_tensor;

enum troika_role { TROIKA_INPUT = 0, TROIKA_TARGET = 1, TROIKA_OUTPUT = 2 };

/* Not collective. How many tensors a role has, and which; from 0. */
int troika_model_tensor_count(const troika_model* model, int role, int* count);
int troika_model_tensor(const troika_model* model, int role, int index, troika_tensor* tensor);

/* An array of the caller's, contiguous and sample by sample: `count` numbers, which is `values` of
 * the troika_tensor for each sample. Inputs and targets are of any troika_type. Outputs are
 * TROIKA_FLOAT or TROIKA_DOUBLE, and TROIKA_INT64 where they are whole numbers. */
typedef struct troika_array {
  const char* name;
  void* data; /* only read, but of outputs */
  int64_t count;
  int type;
} troika_array;

/* Collective: one step of the optimiser, on the samples of all ranks together. Every input and
 * target that is not optional is there, in any order. Each rank may have any number of samples,
 * also none. A target that is NaN is missing, as is a class that is -100: it does not count.
 * `loss`, which may be NULL, is the mean over all samples before the step. The arrays are not used
 * once this has returned. */
int troika_model_step_arrays(troika_model* model, const troika_array* inputs, int input_count,
                             const troika_array* targets, int target_count, int64_t samples,
                             double* loss);
/* Collective: the same without a step. */
int troika_model_loss_arrays(troika_model* model, const troika_array* inputs, int input_count,
                             const troika_array* targets, int target_count, int64_t samples,
                             double* loss);
/* Not collective. Fills the outputs that are named; others are left out. */
int troika_model_predict_arrays(troika_model* model, const troika_array* inputs, int input_count,
                                int64_t samples, const troika_array* outputs, int output_count);

/* Not collective. Fills `gradients` with the derivatives of an output with respect to the inputs
 * that they name: forces of an energy, say. Differentiated is one value of each sample's output,
 * `component`, counted from 0 row by row; where that is negative, the sum of all its values. Each
 * gradient has the name and the size of its input, and is TROIKA_FLOAT or TROIKA_DOUBLE. `output`
 * may be NULL: the first. Models of kind mlp, resnet, torchscript and plugin have them. */
int troika_model_input_gradients(troika_model* model, const troika_array* inputs, int input_count,
                                 int64_t samples, const char* output, int64_t component,
                                 const troika_array* gradients, int gradient_count);

/* Step, loss and prediction for a model with one input and one target, both of TROIKA_FLOAT or
 * TROIKA_DOUBLE. `inputs` is [samples, ...], row by row (in Fortran: real x(input_dim, samples));
 * `targets` is likewise, or, with loss = "cross_entropy", [samples] with the numbers of the classes
 * from 0. */
int troika_model_step(troika_model* model, const void* inputs, const void* targets, int64_t samples,
                      int type, double* loss);
int troika_model_loss(troika_model* model, const void* inputs, const void* targets, int64_t samples,
                      int type, double* loss);
/* `outputs` takes the first output, of the same type: values, or logits where the loss is
 * cross-entropy. */
int troika_model_predict(troika_model* model, const void* inputs, int64_t samples, int type,
                         void* outputs);

/* Not collective. The steps so far; the learning rate of the last one, or of the first before that;
 * and the mean losses of the last `limit` steps or fewer, the oldest first. `losses` has room for
 * `limit`, `count` is how many there are. Only the last TROIKA_LOSSES are kept. */
enum { TROIKA_LOSSES = 1000 };
int troika_model_steps(const troika_model* model, int64_t* steps);
int troika_model_learning_rate(const troika_model* model, double* rate);
int troika_model_losses(const troika_model* model, int64_t limit, double* losses, int64_t* count);

/* Collective: rank 0 writes, or reads, parameters and buffers (such as running statistics) as a
 * safetensors file, with the names of docs/safetensors.md, `layers.0.weight` and so on; every rank
 * has them then. The optimiser's state is not in it. With kind = "torchscript" saving also writes
 * the script beside it, for torch.jit.load(): rod.pt beside rod.safetensors. */
int troika_model_save(troika_model* model, const char* path);
int troika_model_load(troika_model* model, const char* path);

/* Collective: the same with all that training goes on from: parameters, buffers, the optimiser's
 * state, the steps, with them the schedule and the random numbers, and the losses. A model of the
 * same recipe on any number of ranks goes on where it was; on as many ranks, with the same arrays,
 * with the same bits. */
int troika_model_save_state(troika_model* model, const char* path);
int troika_model_load_state(troika_model* model, const char* path);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-use-using,readability-identifier-naming) */

#endif
