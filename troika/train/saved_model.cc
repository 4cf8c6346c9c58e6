#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/tensors.h>
#include <troika/train/saved_model.h>

#include <set>
#include <sstream>

namespace troika {
namespace {

std::string text_of(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

// A file of another model must not pass for this one.
void refuse_surplus(const SafetensorsFile& file, const Arena& arena) {
  if (file.entries().size() == arena.parameters().size()) return;
  std::set<std::string_view> known;
  for (const auto& parameter : arena.parameters()) known.insert(parameter->spec().name);
  for (const TensorEntry& entry : file.entries()) {
    if (known.contains(entry.name)) continue;
    throw DataError(
        shown_path(file.path()) + ": the recipe's model has no tensor " + quote(entry.name),
        "the file is of another model than the recipe beside it");
  }
}

}  // namespace

std::filesystem::path model_path(const std::filesystem::path& run) {
  return run / "model.safetensors";
}

std::filesystem::path best_model_path(const std::filesystem::path& run) {
  return run / "best.safetensors";
}

void save_parameters(const std::filesystem::path& path, std::span<const NamedTensor> parameters) {
  save_tensors(path, parameters, {{"format", "pt"}});
}

void save_parameters(const std::filesystem::path& path, const Arena& arena) {
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : arena.parameters()) {
    tensors.push_back({parameter->spec().name, parameter->master()});
  }
  save_parameters(path, tensors);
}

// All of it is checked before anything is taken in: a file that is refused leaves the model as it
// was.
void load_parameters(const std::filesystem::path& path, Arena& arena) {
  const SafetensorsFile file(path);
  for (const auto& parameter : arena.parameters()) {
    const std::string& name = parameter->spec().name;
    const TensorEntry& entry = file.at(name);
    if (!is_floating_point(entry.type)) {
      throw DataError(shown_path(path) + ": tensor " + quote(name) + " is of type " +
                          std::string(name_of(entry.type)),
                      "parameters are F64, F32, BF16 or F16");
    }
    const at::IntArrayRef shape = entry.shape;
    if (shape != parameter->master().sizes()) {
      throw DataError(shown_path(path) + ": tensor " + quote(name) + " is " + text_of(shape) +
                      ", the recipe's model has " + text_of(parameter->master().sizes()));
    }
  }
  refuse_surplus(file, arena);
  for (const auto& parameter : arena.parameters()) {
    parameter->master().copy_(load_tensor(file, file.at(parameter->spec().name)));
  }
  arena.publish();
}

void load_model(const std::filesystem::path& run, Arena& arena) {
  load_parameters(model_path(run), arena);
}

}  // namespace troika
