// Times the calls of <troika/troika.h> on a small model, in us a call: the least of kRounds means
// over kCalls calls each, which is what the calls cost where nothing else runs. Of calls that make
// a model or a file, over kDearCalls each.
//
//   troika launch --ranks 2 build/tests/bench_calls/calls_bench [ENGINE]
#include <troika/troika.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <stdexcept>

namespace {

constexpr int kRounds = 50, kCalls = 100, kDearCalls = 3;
constexpr std::size_t kSamples = 8, kInputs = 3;
constexpr const char* kRecipe = R"(
[model]
kind = "mlp"
input_dim = 3
hidden_dims = [8]
output_dim = 1
activation = "tanh"
loss = "mean_square"
[train]
steps = 100000
precision = "fp64"
[optimizer]
kind = "sgd"
lr = 0.001
warmup_steps = 0
)";

void must(int status) {
  if (status != TROIKA_OK) throw std::runtime_error(troika_last_error());
}

// The least of means over `calls` calls each.
double microseconds(const std::function<int()>& call, int calls) {
  using Clock = std::chrono::steady_clock;
  double least = INFINITY;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) must(call());
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    least = std::min(least, taken.count() / calls);
  }
  return least;
}

// A session and a model of it, with arrays of this rank's own.
struct Bench {
  troika_session* session = nullptr;
  troika_model* model = nullptr;
  int rank = 0;
  std::array<double, kSamples * kInputs> inputs{}, gradients{};
  std::array<double, kSamples> targets{}, outputs{};

  void time(const char* name, const std::function<int()>& call, int calls = kCalls) const {
    const double least = microseconds(call, calls);
    if (rank == 0) std::printf("%-16s %9.2f us\n", name, least);
  }
};

void time_calls_on_a_session(Bench& bench) {
  troika_session* const session = bench.session;
  std::array<double, 2> values{};
  int number = 0;
  bench.time("rank", [&] { return troika_rank(session, &number); });
  bench.time("size", [&] { return troika_size(session, &number); });
  bench.time("barrier", [&] { return troika_barrier(session, nullptr); });
  bench.time("all_reduce", [&] {
    return troika_all_reduce(session, values.data(), 2, TROIKA_DOUBLE, TROIKA_MAX, nullptr);
  });
  bench.time("broadcast", [&] {
    return troika_broadcast(session, values.data(), 2, TROIKA_DOUBLE, 0, nullptr);
  });
}

void time_questions(Bench& bench) {
  troika_model* const model = bench.model;
  int count = 0;
  troika_tensor tensor = {};
  std::int64_t steps = 0;
  double rate = 0;
  std::array<double, TROIKA_LOSSES> losses{};
  bench.time("set_name", [&] { return troika_model_set_name(model, "model"); });
  bench.time("tensor_count",
             [&] { return troika_model_tensor_count(model, TROIKA_INPUT, &count); });
  bench.time("tensor", [&] { return troika_model_tensor(model, TROIKA_INPUT, 0, &tensor); });
  bench.time("steps", [&] { return troika_model_steps(model, &steps); });
  bench.time("learning_rate", [&] { return troika_model_learning_rate(model, &rate); });
  bench.time("losses",
             [&] { return troika_model_losses(model, std::ssize(losses), losses.data(), &steps); });
}

void time_training(Bench& bench) {
  troika_model* const model = bench.model;
  const double *x = bench.inputs.data(), *y = bench.targets.data();
  const troika_array input = {"features", bench.inputs.data(), std::ssize(bench.inputs),
                              TROIKA_DOUBLE};
  const troika_array target = {"targets", bench.targets.data(), std::ssize(bench.targets),
                               TROIKA_DOUBLE};
  const troika_array output = {"outputs", bench.outputs.data(), std::ssize(bench.outputs),
                               TROIKA_DOUBLE};
  const troika_array gradient = {"features", bench.gradients.data(), std::ssize(bench.gradients),
                                 TROIKA_DOUBLE};
  double mean = 0;
  bench.time("step",
             [&] { return troika_model_step(model, x, y, kSamples, TROIKA_DOUBLE, nullptr); });
  bench.time("step_arrays", [&] {
    return troika_model_step_arrays(model, &input, 1, &target, 1, kSamples, nullptr);
  });
  bench.time("loss",
             [&] { return troika_model_loss(model, x, y, kSamples, TROIKA_DOUBLE, &mean); });
  bench.time("loss_arrays", [&] {
    return troika_model_loss_arrays(model, &input, 1, &target, 1, kSamples, &mean);
  });
  bench.time("predict", [&] {
    return troika_model_predict(model, x, kSamples, TROIKA_DOUBLE, bench.outputs.data());
  });
  bench.time("predict_arrays",
             [&] { return troika_model_predict_arrays(model, &input, 1, kSamples, &output, 1); });
  bench.time("input_gradients", [&] {
    return troika_model_input_gradients(model, &input, 1, kSamples, "outputs", -1, &gradient, 1);
  });
}

// These write and read files, in the folder that this program was started in.
void time_files(Bench& bench) {
  troika_model* const model = bench.model;
  constexpr const char *kModel = "calls_bench.safetensors",
                       *kState = "calls_bench_state.safetensors";
  bench.time(
      "save", [&] { return troika_model_save(model, kModel); }, kDearCalls);
  bench.time(
      "load", [&] { return troika_model_load(model, kModel); }, kDearCalls);
  bench.time(
      "save_state", [&] { return troika_model_save_state(model, kState); }, kDearCalls);
  bench.time(
      "load_state", [&] { return troika_model_load_state(model, kState); }, kDearCalls);
  must(troika_barrier(bench.session, nullptr));
  if (bench.rank != 0) return;
  (void)std::remove(kModel);
  (void)std::remove(kState);
}

void time_creation(Bench& bench) {
  bench.time(
      "create and free",
      [&] {
        troika_model* model = nullptr;
        must(troika_model_create(bench.session, kRecipe, &model));
        return troika_model_free(model);
      },
      kDearCalls);
}

void time_calls(const char* engine) {
  Bench bench;
  troika_options options = {};
  options.engine = engine;
  options.threads = 1;
  must(troika_open(&options, &bench.session));
  must(troika_model_create(bench.session, kRecipe, &bench.model));
  must(troika_rank(bench.session, &bench.rank));
  for (std::size_t i = 0; i < bench.inputs.size(); ++i) {
    bench.inputs[i] = std::sin(static_cast<double>(i) + bench.rank);
  }
  for (std::size_t i = 0; i < kSamples; ++i) bench.targets[i] = bench.inputs[kInputs * i];
  time_calls_on_a_session(bench);
  time_training(bench);
  time_questions(bench);
  time_files(bench);
  time_creation(bench);
  must(troika_model_free(bench.model));
  must(troika_close(bench.session));
}

}  // namespace

int main(int count, char** arguments) {
  try {
    time_calls(count > 1 ? arguments[1] : nullptr);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "calls_bench: %s\n", error.what());
    return 1;
  }
}
