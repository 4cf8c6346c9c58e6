// What a program may have set for its thread or its process, to be compared before and after calls
// of troika/troika.h; and every one of those calls.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <troika/troika.h>
#include <unistd.h>

#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <locale>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

extern "C" {  // of OpenMP's run time
int omp_get_max_threads();
void omp_set_num_threads(int threads);
}

namespace troika::test {

// Returns a type of devices that this process has, beside the host.
inline std::optional<c10::DeviceType> device_type_here() {
  for (const c10::DeviceType type :
       {c10::DeviceType::CUDA, c10::DeviceType::HPU, c10::DeviceType::XPU}) {
    if (!c10::impl::hasDeviceGuardImpl(type)) continue;
    if (c10::impl::getDeviceGuardImpl(type)->deviceCount() > 0) return type;
  }
  return std::nullopt;
}

class CallerSettings {
 public:
  // Takes note of the settings as they are now.
  CallerSettings() {
    note("threads of OpenMP", std::to_string(omp_get_max_threads()));
    note("rounding", std::to_string(std::fegetround()));
    note("traps", std::to_string(fegetexcept()));
#ifdef __SSE__
    note("floating-point modes and flags", std::to_string(_mm_getcsr()));
#endif
    note("locale", std::setlocale(LC_ALL, nullptr));
    note("locale of C++", std::locale().name());
    char number[16];
    std::snprintf(number, sizeof(number), "%.1f", 0.5);
    note("numbers in words", number);
    note("signal handlers", signal_handlers());
    sigset_t mask = {};
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    note("signal mask", bytes_of(mask));
    note("current directory", std::filesystem::current_path().string());
    for (char** each = environ; *each != nullptr; ++each) note("environment", *each);
    const mode_t created = umask(0);
    umask(created);
    note("umask", std::to_string(created));
    cpu_set_t cores = {};
    sched_getaffinity(0, sizeof(cores), &cores);
    note("cores", bytes_of(cores));
    if (const auto type = device_type_here()) {
      note("current device",
           std::to_string(c10::impl::getDeviceGuardImpl(*type)->getDevice().index()));
    }
  }

  // Returns the first setting that is another than before, with its value; or nothing.
  [[nodiscard]] std::string changed_from(const CallerSettings& before) const {
    for (std::size_t i = 0; i < settings_.size(); ++i) {
      if (i < before.settings_.size() && settings_[i] == before.settings_[i]) continue;
      return settings_[i].first + ": " + settings_[i].second;
    }
    return settings_.size() == before.settings_.size() ? "" : "a variable of the environment";
  }

 private:
  void note(std::string name, std::string value) {
    settings_.emplace_back(std::move(name), std::move(value));
  }
  template <class Value>
  static std::string bytes_of(const Value& value) {
    std::string bytes(sizeof(value), '\0');
    std::memcpy(bytes.data(), &value, sizeof(value));
    return bytes;
  }
  static std::string signal_handlers() {
    std::string all;
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction action = {};
      if (sigaction(signal, nullptr, &action) != 0) continue;
      all += bytes_of(action.sa_handler) + bytes_of(action.sa_flags);
    }
    return all;
  }

  std::vector<std::pair<std::string, std::string>> settings_;
};

inline constexpr const char* kWideRecipe = R"(
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

// Makes every call of troika/troika.h on a session that `open` opens, and calls that fail. Before
// the first, when the arrays are there, `begin` is called; after each `check` gets its name. Files
// go to `folder`, the same on all ranks. Returns the losses.
inline std::vector<double> call_everything(
    const std::function<int(troika_session** session)>& open, const std::filesystem::path& folder,
    const std::function<void()>& begin, const std::function<void(const std::string& call)>& check,
    const std::string& recipe = kWideRecipe) {
  const auto done = [&](int status, const std::string& call) {
    check(call);
    EXPECT_EQ(status, TROIKA_OK) << call << ": " << troika_last_error();
  };
  const auto fails = [&](int status, int expected, const std::string& call) {
    check(call + " that fails");
    EXPECT_EQ(status, expected) << call << ": " << troika_last_error();
  };
  constexpr std::int64_t kSamples = 256;
  const std::string file = (folder / "net.safetensors").string();
  const std::string state = (folder / "state.safetensors").string();
  std::vector<double> x(2 * kSamples), y(kSamples), slopes(x.size()), losses, outputs(kSamples);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i % 17) / 16;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[2 * i] * x[2 * i + 1];
  const troika_array inputs[] = {{"features", x.data(), 2 * kSamples, TROIKA_DOUBLE}};
  const troika_array targets[] = {{"targets", y.data(), kSamples, TROIKA_DOUBLE}};
  const troika_array wanted[] = {{"outputs", outputs.data(), kSamples, TROIKA_DOUBLE}};
  const troika_array gradients[] = {{"features", slopes.data(), 2 * kSamples, TROIKA_DOUBLE}};

  troika_session* session = nullptr;
  troika_model *model = nullptr, *none = nullptr;
  int number = 0;
  std::int64_t count = 0;
  double rate = 0;
  troika_tensor tensor = {};
  begin();
  done(open(&session), "open");
  done(troika_rank(session, &number), "rank");
  done(troika_size(session, &number), "size");
  fails(troika_model_create(session, "[model]\nkind = \"mlq\"", &none), TROIKA_USAGE, "create");
  fails(troika_model_create_from_file(session, (folder / "no.toml").c_str(), &none), TROIKA_USAGE,
        "create_from_file");
  done(troika_model_create(session, recipe.c_str(), &model), "create");
  done(troika_model_tensor_count(model, TROIKA_INPUT, &number), "tensor_count");
  done(troika_model_tensor(model, TROIKA_OUTPUT, 0, &tensor), "tensor");
  double* const loss = &losses.emplace_back(-1);
  done(troika_model_step(model, x.data(), y.data(), kSamples, TROIKA_DOUBLE, loss), "step");
  losses.resize(5, -1);
  done(troika_model_step_arrays(model, inputs, 1, targets, 1, kSamples, &losses[1]), "step_arrays");
  fails(troika_model_step(model, nullptr, nullptr, 1, TROIKA_DOUBLE, nullptr), TROIKA_USAGE,
        "step");
  done(troika_model_loss(model, x.data(), y.data(), kSamples, TROIKA_DOUBLE, &losses[2]), "loss");
  done(troika_model_loss_arrays(model, inputs, 1, targets, 1, kSamples, &losses[3]), "loss_arrays");
  done(troika_model_predict(model, x.data(), kSamples, TROIKA_DOUBLE, outputs.data()), "predict");
  done(troika_model_predict_arrays(model, inputs, 1, kSamples, wanted, 1), "predict_arrays");
  done(troika_model_input_gradients(model, inputs, 1, kSamples, nullptr, 0, gradients, 1),
       "input_gradients");
  done(troika_model_steps(model, &count), "steps");
  done(troika_model_learning_rate(model, &rate), "learning_rate");
  done(troika_model_losses(model, 1, &rate, &count), "losses");
  done(troika_model_save(model, file.c_str()), "save");
  done(troika_model_load(model, file.c_str()), "load");
  done(troika_model_save_state(model, state.c_str()), "save_state");
  done(troika_model_load_state(model, state.c_str()), "load_state");
  fails(troika_model_save(model, (folder / "no" / "x").c_str()), TROIKA_STORAGE, "save");
  fails(troika_model_load(model, (folder / "no").c_str()), TROIKA_DATA, "load");
  done(troika_model_step(model, x.data(), y.data(), kSamples, TROIKA_DOUBLE, &losses[4]), "step");
  losses.insert(losses.end(), outputs.begin(), outputs.end());
  losses.insert(losses.end(), slopes.begin(), slopes.end());
  done(troika_all_reduce(session, y.data(), 4, TROIKA_DOUBLE, TROIKA_SUM, nullptr), "all_reduce");
  done(troika_broadcast(session, y.data(), 4, TROIKA_DOUBLE, 0, nullptr), "broadcast");
  done(troika_barrier(session, nullptr), "barrier");
  fails(troika_close(session), TROIKA_USAGE, "close");  // with its model
  done(troika_model_free(model), "free");
  done(troika_close(session), "close");
  fails(troika_barrier(session, nullptr), TROIKA_USAGE, "barrier");
  return losses;
}

}  // namespace troika::test
