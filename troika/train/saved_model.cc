#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/checkpoint/doubt.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/tensors.h>
#include <troika/device/device.h>
#include <troika/observe/log.h>
#include <troika/param/shape_text.h>
#include <troika/train/run_folder.h>
#include <troika/train/saved_model.h>

#include <set>

namespace troika {
namespace {

const TensorEntry& entry_for(const SafetensorsFile& file, const NamedTensor& tensor,
                             const std::string& owner) {
  const TensorEntry& entry = file.at(tensor.name);
  const std::string named = shown_path(file.path()) + ": tensor " + quote(tensor.name) + " is ";
  if (tensor.tensor.is_floating_point() && !is_floating_point(entry.type)) {
    throw DataError(named + "of type " + std::string(name_of(entry.type)),
                    "parameters are F64, F32, BF16 or F16");
  }
  const at::IntArrayRef shape = entry.shape;
  if (shape != tensor.tensor.sizes()) {
    throw DataError(named + shape_text(shape) + ", " + owner + " has " +
                    shape_text(tensor.tensor.sizes()));
  }
  return entry;
}

// A file of another model must not pass for this one.
void refuse_surplus(const SafetensorsFile& file, std::span<const NamedTensor> model,
                    const std::string& owner) {
  if (file.entries().size() == model.size()) return;
  std::set<std::string_view> known;
  for (const NamedTensor& each : model) known.insert(each.name);
  for (const TensorEntry& entry : file.entries()) {
    if (known.contains(entry.name)) continue;
    throw DataError(shown_path(file.path()) + ": " + owner + " has no tensor " + quote(entry.name),
                    "the file is of another model than the recipe beside it");
  }
}

}  // namespace

std::filesystem::path model_path(const std::filesystem::path& run) {
  return run / "model.safetensors";
}

void warn_of_older_model(const std::filesystem::path& run) {
  if (std::filesystem::exists(summary_path(run))) return;
  log_warning("the run in " + shown_path(run) +
              " is not finished: its model.safetensors is of where it was last stopped, and "
              "checkpoints may be newer (`troika checkpoint export` takes the newest)");
}

void warn_of_doubt(const std::filesystem::path& place) {
  const std::string doubt = doubt_of(place);
  if (!doubt.empty()) log_warning(shown_place(place) + " is in doubt: " + doubt);
}

std::filesystem::path best_model_path(const std::filesystem::path& run) {
  return run / "best.safetensors";
}

void save_parameters(const std::filesystem::path& path, std::span<const NamedTensor> parameters,
                     const std::optional<EncryptionKey>& key, Metadata metadata) {
  metadata["format"] = "pt";
  save_tensors(path, parameters, metadata, key);
  clear_doubt(path);
}

void save_parameters(const std::filesystem::path& path, const Arena& arena) {
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : arena.parameters()) {
    tensors.push_back({parameter->spec().name, to_host(parameter->master())});
  }
  save_parameters(path, tensors);
}

// All of it is checked before anything is taken in: a file that is refused leaves the model as it
// was.
Metadata load_values(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                     const std::string& owner) {
  const SafetensorsFile file(path);
  for (const NamedTensor& each : tensors) (void)entry_for(file, each, owner);
  refuse_surplus(file, tensors, owner);
  for (const NamedTensor& each : tensors) each.tensor.copy_(load_tensor(file, file.at(each.name)));
  return file.metadata();
}

void load_parameters(const std::filesystem::path& path, Arena& arena,
                     std::span<const NamedTensor> buffers) {
  std::vector<NamedTensor> model(buffers.begin(), buffers.end());
  for (const auto& each : arena.parameters()) model.push_back({each->spec().name, each->master()});
  (void)load_values(path, model, "the recipe's model");
  arena.publish();
}

}  // namespace troika
