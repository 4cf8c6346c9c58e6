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
 * Every function returns TROIKA_OK or what went wrong; troika_last_error() has it in words.
 * Functions marked "collective" are called by all ranks of the session, in the same order. What one
 * rank has wrong in troika_model_create(), _create_from_file(), _step() and _loss() - its recipe,
 * arrays or classes - is an error on all ranks, and the session goes on. Any other argument that
 * one rank alone has wrong (a handle that is NULL; a type, a root or a path elsewhere) is an error
 * on that rank only, while the others wait for it: it makes the call again with the right ones, or
 * ends the program.
 *
 * A session, with the models on it, belongs to one thread at a time. After TROIKA_RENDEZVOUS from a
 * collective call the session can only be closed. */
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
/* Collective; after TROIKA_RENDEZVOUS from a collective call it waits for no rank. Models on the
 * session have to be freed before. NULL is fine. */
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

/* Collective. A model with its optimiser, as a recipe describes it: [model] kind = "mlp", and what
 * it has of seed, [loss], [optimizer] (with lr_base_batch_size, of train.global_batch_size),
 * [train] steps (for the schedule), precision, grad_clip and on_nonfinite. Other keys have no
 * effect; `name` and [data] may be missing. Targets that are NaN do not count. precision "auto" is
 * fp32. All ranks must give the same recipe; they start from the same parameters. */
int troika_model_create(troika_session* session, const char* recipe, troika_model** model);
int troika_model_create_from_file(troika_session* session, const char* path, troika_model** model);
/* NULL is fine. */
int troika_model_free(troika_model* model);

/* Collective: one step of the optimiser, on the samples of all ranks together. `inputs` is
 * [samples, input_dim], row by row (in Fortran: real x(input_dim, samples)), `targets`
 * [samples, output_dim], or, with loss = "cross_entropy", [samples] with the numbers of the classes
 * from 0; both of TROIKA_FLOAT or TROIKA_DOUBLE. Each rank may have any number of samples, also
 * none. `loss`, which may be NULL, is the mean over all samples before the step. The arrays are
 * only read, and not used once this has returned. */
int troika_model_step(troika_model* model, const void* inputs, const void* targets, int64_t samples,
                      int type, double* loss);
/* Collective: the same without a step. */
int troika_model_loss(troika_model* model, const void* inputs, const void* targets, int64_t samples,
                      int type, double* loss);
/* Not collective. `outputs` is [samples, output_dim], of the same type: values, or logits where the
 * loss is cross-entropy. */
int troika_model_predict(troika_model* model, const void* inputs, int64_t samples, int type,
                         void* outputs);
/* Not collective. */
int troika_model_steps(const troika_model* model, int64_t* steps);

/* Collective: rank 0 writes, or reads, the parameters as a safetensors file, with the names of
 * docs/safetensors.md, `layers.0.weight` and so on; every rank has them then. The optimiser's state
 * is not in it. */
int troika_model_save(troika_model* model, const char* path);
int troika_model_load(troika_model* model, const char* path);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-use-using,readability-identifier-naming) */

#endif
