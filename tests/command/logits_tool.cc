// What a language model in a run's folder says of a text: logits_tool RUN FILE ID... writes the
// logits after each id to FILE, as "logits" [ids, vocab_size].
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <troika/checkpoint/tensors.h>
#include <troika/models/kind.h>
#include <troika/nn/stage.h>
#include <troika/train/run_folder.h>
#include <troika/train/saved_model.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace {

void write_logits(const std::string& run, const std::string& file,
                  const std::vector<std::int64_t>& ids) {
  const c10::InferenceMode no_autograd;
  const troika::ModelOptions model = troika::recipe_of_run(run).model;
  const troika::UnitStage stage(troika::build_model(model, 0).units, 0);
  troika::Arena arena(stage.specs(), {at::kFloat, at::kFloat}, troika::Group(), at::kCPU);
  const auto language_model = model.kind().language_model(model.options(), arena);
  troika::load_parameters(troika::model_path(run), arena);
  std::vector<at::Tensor> logits;
  for (std::size_t length = 1; length <= ids.size(); ++length) {
    const at::Tensor prefix = at::tensor(at::ArrayRef<std::int64_t>(ids.data(), length), at::kLong);
    logits.push_back(language_model->next(prefix));
  }
  const std::vector<troika::NamedTensor> tensors = {{"logits", at::stack(logits)}};
  troika::save_tensors(file, tensors);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    std::vector<std::int64_t> ids;
    for (std::size_t i = 2; i < words.size(); ++i) ids.push_back(std::stoll(words[i]));
    write_logits(words.at(0), words.at(1), ids);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
