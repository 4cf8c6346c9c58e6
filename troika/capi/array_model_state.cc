// What an ArrayModel goes on from, in one file: the parameters and buffers under their names, the
// optimiser's state as checkpoints of runs call it, the losses, and the numbers of steps beside
// them.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/capi/array_model.h>
#include <troika/checkpoint/tensors.h>
#include <troika/device/device.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/run_folder.h>
#include <troika/train/saved_model.h>

#include <charconv>
#include <string>
#include <vector>

namespace troika {
namespace {

constexpr const char* kSteps = "steps";
constexpr const char* kUpdates = "updates";
constexpr const char* kLosses = "losses";
constexpr const char* kOwner = "the state of this model";

// Throws DataError where the file has no such number: it is no state of training.
std::int64_t number_in(const Metadata& metadata, const std::string& key,
                       const std::filesystem::path& path) {
  const auto found = metadata.find(key);
  const std::string text = found == metadata.end() ? "" : found->second;
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= 0) return number;
  throw DataError(shown_path(path) + " holds no state of training: it has no number of " + key,
                  "troika_model_save_state() writes one; troika_model_load() takes a model alone");
}

}  // namespace

std::vector<NamedTensor> ArrayModel::state() const {
  std::vector<NamedTensor> state = values();
  for (const NamedState& each : optimizer_->state()) {
    state.push_back({"optimizer." + std::string(each.kind) + "." + each.parameter, each.tensor});
  }
  return state;
}

void ArrayModel::save_state(const FindPath& find) const {
  const at::NoGradGuard no_autograd;
  const std::filesystem::path path = agreed_path("saving the state", find);
  on_rank_0("save the state", [&] {
    std::vector<NamedTensor> tensors = state();
    const std::vector<double> losses(losses_.begin(), losses_.end());
    tensors.push_back({kLosses, at::tensor(losses, at::kDouble)});
    save_tensors(path, tensors,
                 {{kSteps, std::to_string(steps_)}, {kUpdates, std::to_string(updates_)}},
                 key_of(recipe_));
  });
}

void ArrayModel::refuse_state(const std::filesystem::path& path) {
  if (!SafetensorsFile(path).metadata().contains(kUpdates)) return;
  throw DataError(shown_path(path) + " holds the state of a training, and not a model alone",
                  "troika_model_load_state() reads it");
}

void ArrayModel::load_state(const FindPath& find) {
  const at::NoGradGuard no_autograd;
  const std::filesystem::path path = agreed_path("loading the state", find);
  std::vector<NamedTensor> tensors = state();
  std::vector<double> losses;
  std::int64_t numbers[] = {0, 0, 0};  // steps, updates, losses
  on_rank_0("load the state", [&] {
    const SafetensorsFile file(path);
    numbers[0] = number_in(file.metadata(), kSteps, path);
    numbers[1] = number_in(file.metadata(), kUpdates, path);
    const at::Tensor kept = load_tensor(file, file.at(kLosses)).to(at::kDouble).flatten();
    const auto* const first = kept.const_data_ptr<double>();
    losses.assign(first, first + kept.numel());
    numbers[2] = std::ssize(losses);
    tensors.push_back({kLosses, kept});
    (void)load_values(path, tensors, kOwner);
    tensors.pop_back();
  });
  const auto take_over = [&](const at::Tensor& values) {
    session_.world().broadcast(values, 0, session_.call("loaded state")).wait();
  };
  take_over(at::from_blob(numbers, {3}, at::kLong));
  losses.resize(static_cast<std::size_t>(numbers[2]));
  if (!losses.empty()) take_over(at::from_blob(losses.data(), {numbers[2]}, at::kDouble));
  share_loaded();
  for (const NamedState& each : optimizer_->state()) take_over(each.tensor);
  steps_ = numbers[0];
  updates_ = numbers[1];
  losses_.assign(losses.begin(), losses.end());
}

}  // namespace troika
