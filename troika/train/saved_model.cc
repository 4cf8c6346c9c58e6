#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/tensors.h>
#include <troika/train/saved_model.h>

#include <sstream>

namespace troika {
namespace {

std::string text_of(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

}  // namespace

std::filesystem::path model_path(const std::filesystem::path& run) {
  return run / "model.safetensors";
}

void save_model(const std::filesystem::path& run, const Arena& arena) {
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : arena.parameters()) {
    tensors.push_back({parameter->spec().name, parameter->master()});
  }
  save_tensors(model_path(run), tensors, {{"format", "pt"}});
}

void load_model(const std::filesystem::path& run, Arena& arena) {
  const std::filesystem::path path = model_path(run);
  const SafetensorsFile file(path);
  for (const auto& parameter : arena.parameters()) {
    const std::string& name = parameter->spec().name;
    const at::Tensor values = load_tensor(file, file.at(name));
    if (values.sizes() != parameter->master().sizes()) {
      throw DataError("'" + path.string() + "': tensor '" + name + "' is " +
                      text_of(values.sizes()) + ", the recipe's model has " +
                      text_of(parameter->master().sizes()));
    }
    parameter->master().copy_(values);
  }
  arena.publish();
}

}  // namespace troika
