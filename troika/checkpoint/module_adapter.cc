#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/checkpoint/module_adapter.h>
#include <troika/checkpoint/tensors.h>

#include <torch/torch.h>

#include <string>
#include <vector>

namespace troika {
namespace {

constexpr const char* kTensors = "adapter_model.safetensors";

// The pairs under their names there.
std::vector<NamedTensor> tensors_of(const ModuleLora& lora) {
  std::vector<NamedTensor> tensors;
  const std::vector<at::Tensor> pairs = lora.parameters();
  for (std::size_t i = 0; i < lora.adapted().size(); ++i) {
    const std::string layer = "base_model.model." + lora.adapted()[i];
    tensors.push_back({layer + std::string(kLoraA), pairs[2 * i]});
    tensors.push_back({layer + std::string(kLoraB), pairs[2 * i + 1]});
  }
  return tensors;
}

}  // namespace

void save_adapter(const ModuleLora& lora, const std::filesystem::path& folder) {
  make_folders(folder);
  save_tensors(folder / kTensors, tensors_of(lora), {{"format", "pt"}});
  PeftAdapter adapter;
  adapter.options = lora.options();
  adapter.layers = lora.layers();
  adapter.adapted = lora.adapted();
  write_file_atomically(folder / "adapter_config.json", peft_config(adapter));
}

void load_adapter(const std::filesystem::path& folder, const ModuleLora& lora) {
  const SafetensorsFile file(folder / kTensors);
  const std::vector<NamedTensor> tensors = tensors_of(lora);
  for (const NamedTensor& each : tensors) {
    const at::IntArrayRef shape = file.at(each.name).shape;
    if (shape == each.tensor.sizes()) continue;
    throw DataError(shown_path(file.path()) + ": tensor " + quote(each.name) +
                        " has another shape than beside that layer",
                    "LoraOptions::rank has to be that of the folder: read_peft_config() has it");
  }
  if (file.entries().size() != tensors.size()) {
    throw DataError(shown_path(file.path()) + " has pairs beside layers that have none here",
                    "LoraOptions::match has to fit the layers of the folder");
  }
  const at::NoGradGuard no_grad;
  for (const NamedTensor& each : tensors) each.tensor.copy_(load_tensor(file, file.at(each.name)));
}

}  // namespace troika
