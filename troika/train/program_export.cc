#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/models/kind.h>
#include <troika/train/adapted_model.h>
#include <troika/train/program_export.h>
#include <troika/train/run_tokenizer.h>
#include <troika/train/saved_model.h>

#include <vector>

namespace troika {

bool is_program_path(const std::filesystem::path& path) {
  return path.extension() == ".pt2" || path.extension() == ".pt";
}

void export_program(const ProgramExport& options) {
  Recipe recipe = recipe_of_trained(options.run);
  const ModelKind& kind = recipe.model.kind();
  const std::string suffix(kind.program_suffix());
  if (options.out.extension() != suffix) {
    const std::string named = shown_path(options.out) + ": a model of kind = \"" +
                              std::string(kind.name()) + "\" is no program that ends in " +
                              options.out.extension().string();
    throw UsageError(named, suffix.empty() ? "name a new folder, for Hugging Face's libraries"
                                           : "name a file that ends in " + suffix);
  }
  std::filesystem::path own = model_path(options.run);
  if (std::filesystem::exists(own.replace_extension(suffix))) {  // of a run that has ended
    kind.adapt_to_run(recipe.model.options(), model_path(options.run));
  }
  const auto model = open_whole_tensors(recipe, options.run, options.step);
  std::vector<NamedTensor> values;
  for (const TensorEntry& each : model->entries()) values.push_back({each.name, model->load(each)});
  std::filesystem::path beside = options.out;
  kind.save_beside(recipe.model.options(), beside.replace_extension(".safetensors"), values);
}

}  // namespace troika
