// Times the calls of <troika/troika.h> on a small model, in us a call: the least of kRounds means
// over kCalls calls each, which is what the calls cost where nothing else runs.
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

constexpr int kRounds = 50, kCalls = 100;
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

double microseconds(const std::function<int()>& call) {
  using Clock = std::chrono::steady_clock;
  double least = INFINITY;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCalls; ++i) must(call());
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    least = std::min(least, taken.count() / kCalls);
  }
  return least;
}

void time_calls(const char* engine) {
  troika_options options = {};
  options.engine = engine;
  options.threads = 1;
  troika_session* session = nullptr;
  troika_model* model = nullptr;
  must(troika_open(&options, &session));
  must(troika_model_create(session, kRecipe, &model));
  int rank = 0;
  must(troika_rank(session, &rank));
  std::array<double, kSamples * kInputs> inputs{};
  std::array<double, kSamples> targets{}, outputs{};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = std::sin(static_cast<double>(i) + rank);
  }
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = inputs[kInputs * i];
  std::array<double, 2> values{};
  double mean = 0;
  const auto time = [&](const char* name, const std::function<int()>& call) {
    const double least = microseconds(call);
    if (rank == 0) std::printf("%-11s %9.2f us\n", name, least);
  };
  const double *x = inputs.data(), *y = targets.data();
  time("rank", [&] { return troika_rank(session, &rank); });
  time("barrier", [&] { return troika_barrier(session, nullptr); });
  time("all_reduce", [&] {
    return troika_all_reduce(session, values.data(), 2, TROIKA_DOUBLE, TROIKA_MAX, nullptr);
  });
  time("loss", [&] { return troika_model_loss(model, x, y, kSamples, TROIKA_DOUBLE, &mean); });
  time("step", [&] { return troika_model_step(model, x, y, kSamples, TROIKA_DOUBLE, nullptr); });
  time("predict",
       [&] { return troika_model_predict(model, x, kSamples, TROIKA_DOUBLE, outputs.data()); });
  must(troika_model_free(model));
  must(troika_close(session));
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
