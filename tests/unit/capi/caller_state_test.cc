// The caller's thread is as it was before a call: OpenMP's threads, floating-point modes, locale,
// signal handlers; and what is computed in between does not depend on them.
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <support/temporary_folder.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

extern "C" {  // of OpenMP's run time
int omp_get_max_threads();
void omp_set_num_threads(int threads);
}

namespace troika {
namespace {

constexpr const char* kWideRecipe = R"(
[model]
kind = "mlp"
input_dim = 2
hidden_dims = [64, 64]
output_dim = 1
activation = "tanh"
loss = "mean_square"
[train]
steps = 20
precision = "fp64"
[optimizer]
kind = "adamw"
lr = 0.0125
warmup_steps = 0
)";

// What a program may have set for its thread or process.
struct Settings {
  int threads = omp_get_max_threads();
  int rounding = std::fegetround();
  int traps = fegetexcept();
  unsigned modes = 0;
  std::string locale = std::setlocale(LC_ALL, nullptr);
  std::string number;
  std::vector<void (*)(int)> handlers;
  sigset_t mask = {};

  Settings() {
#ifdef __SSE__
    modes = _mm_getcsr();
#endif
    char text[16];
    std::snprintf(text, sizeof(text), "%.1f", 0.5);
    number = text;
    for (int signal = 1; signal < 32; ++signal) {
      struct sigaction action = {};
      sigaction(signal, nullptr, &action);
      handlers.push_back(action.sa_handler);
    }
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  }

  // Names the first setting that is another.
  [[nodiscard]] std::string changed_from(const Settings& other) const {
    if (threads != other.threads) return "threads: " + std::to_string(threads);
    if (rounding != other.rounding) return "rounding";
    if (traps != other.traps) return "traps";
    if (modes != other.modes) return "modes: " + std::to_string(modes);
    if (locale != other.locale || number != other.number) return "locale: " + number;
    if (handlers != other.handlers) return "signal handlers";
    return std::memcmp(&mask, &other.mask, sizeof(mask)) == 0 ? "" : "signal mask";
  }
};

// Calls every function that works, and checks the settings after each. Returns the losses.
std::vector<double> call_everything(const std::function<void()>& set) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "net.safetensors").string();
  std::vector<double> x(512), y(256), losses;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i % 17) / 16;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[2 * i] * x[2 * i + 1];
  set();
  const Settings before;
  troika_session* session = nullptr;
  troika_model* model = nullptr;
  const auto check = [&](int status, const char* what) {
    EXPECT_EQ(Settings().changed_from(before), "") << what;
    EXPECT_EQ(status, TROIKA_OK) << what << ": " << troika_last_error();
  };
  troika_options options = {};
  options.threads = 2;
  check(troika_open_alone(&options, &session), "open");
  check(troika_model_create(session, kWideRecipe, &model), "create");
  for (int step = 0; step < 3; ++step) {
    losses.push_back(-1);
    check(troika_model_step(model, x.data(), y.data(), 256, TROIKA_DOUBLE, &losses.back()), "step");
  }
  check(troika_model_predict(model, x.data(), 256, TROIKA_DOUBLE, y.data()), "predict");
  check(troika_model_save(model, file.c_str()), "save");
  check(troika_model_load(model, file.c_str()), "load");
  check(troika_all_reduce(session, y.data(), 4, TROIKA_DOUBLE, TROIKA_SUM, nullptr), "all_reduce");
  EXPECT_EQ(troika_model_step(model, nullptr, nullptr, 1, TROIKA_DOUBLE, nullptr), TROIKA_USAGE);
  EXPECT_EQ(Settings().changed_from(before), "") << "after a failure";
  check(troika_model_free(model), "free");
  check(troika_close(session), "close");
  return losses;
}

class CallerKeeps : public ::testing::Test {
 protected:
  void TearDown() override {
    std::fesetenv(FE_DFL_ENV);
    omp_set_num_threads(threads_);
    std::setlocale(LC_ALL, "C");
  }
  const int threads_ = omp_get_max_threads();
};

TEST_F(CallerKeeps, OpenMpsThreads) {
  const std::vector<double> usual = call_everything([] { omp_set_num_threads(3); });
  EXPECT_EQ(usual, call_everything([] { omp_set_num_threads(1); }));
}

TEST_F(CallerKeeps, FloatingPointModes) {
  const std::vector<double> usual = call_everything([] {});
  EXPECT_EQ(usual, call_everything([] { std::fesetround(FE_UPWARD); }));
  EXPECT_EQ(usual,
            call_everything([] { feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW); }));
#ifdef __SSE__
  EXPECT_EQ(usual, call_everything([] { _mm_setcsr(_mm_getcsr() | 0x8040); }));  // flush denormals
#endif
}

// A comma for a point, in what C functions read and write.
TEST_F(CallerKeeps, Locale) {
  const std::vector<double> usual = call_everything([] {});
  std::string with_comma;
  for (const char* each : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ru_RU.UTF-8"}) {
    if (std::setlocale(LC_ALL, each) != nullptr) with_comma = each;
  }
  if (with_comma.empty()) GTEST_SKIP() << "this system has no locale with a decimal comma";
  EXPECT_EQ(usual, call_everything([&] { std::setlocale(LC_ALL, with_comma.c_str()); }));
}

}  // namespace
}  // namespace troika
