// The adapters of a module of the user's own as the package `peft` has them: a folder with
// adapter_config.json and adapter_model.safetensors.
//
//   troika::LoraOptions options = troika::read_peft_config("adapter");
//   options.dropout = 0;  // which a ModuleLora does not have
//   troika::ModuleLora lora(*net, options);
//   troika::load_adapter("adapter", lora);
//   ...
//   if (session.rank() == 0) troika::save_adapter(lora, "trained");
#pragma once

#include <troika/nn/adapter_kind.h>
#include <troika/nn/module_lora.h>

#include <filesystem>

namespace troika {

// Writes the pairs into `folder`, which is made where it is not there. Not collective: one rank
// does. Throws StorageError; the earlier files then stay.
void save_adapter(const ModuleLora& lora, const std::filesystem::path& folder);
// Takes the values of the pairs. Throws DataError naming the file, and the tensor that is missing,
// has another shape or is beside another layer; nothing has changed then.
void load_adapter(const std::filesystem::path& folder, const ModuleLora& lora);

}  // namespace troika
