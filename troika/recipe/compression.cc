// What [compress] goes with.
#include <troika/config/toml_text.h>
#include <troika/recipe/validate.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace troika {
namespace {

class CompressionCheck {
 public:
  CompressionCheck(const Recipe& recipe, const Origins& origins)
      : recipe_(recipe), origins_(origins) {}

  void of_gradients() const {
    const ParallelOptions& parallel = recipe_.parallel;
    if (parallel.zero_stage > 0) {
      refuse("parallel.zero_stage", "a gradient is averaged whole, and ZeRO sums shards of it",
             "write zero_stage = 0");
    }
    if (parallel.shard > 0) {
      refuse("parallel.shard", "the data axis is averaged as one", "write shard = 0");
    }
    if (recipe_.train.precision == Precision::kFloat16) {
      refuse("train.precision", "errors that are kept have no part in its loss scale",
             "write precision = \"bf16\"");
    }
    of_norms();
  }

  void of_norms() const {
    if (recipe_.optimizer.kind.kind().uses_layer_norms() &&
        !recipe_.compress.kind().keeps_norms(recipe_.compress.options())) {
      refuse("optimizer.kind",
             std::string(recipe_.optimizer.kind.name()) +
                 " scales the update of a tensor by its norm, and of some tensors little or "
                 "nothing is sent in a step",
             "write [compress] kind = \"int8\" or \"power_sgd\"");
    }
  }

  void of_pushes() const {
    const CompressKind& kind = recipe_.compress.kind();
    if (kind.codec(recipe_.compress.options(), 0) == nullptr) {
      refuse("sync.kind", "servers keep parts of parameters, which are no matrices",
             "write [compress] kind = \"int8\" or \"top_k\"");
    }
    if (kind.only(recipe_.compress.options()) != CompressOnly::kEverywhere) {
      refuse("compress.only",
             "what a worker pushes is compressed wherever its servers are, on its own host, too",
             "write only = \"everywhere\"");
    }
    const auto servers = recipe_.sync.kind().servers(recipe_.sync.options());
    if (servers && servers->local_steps == 0) of_norms();  // else workers have whole gradients
  }

  // Of the same parameter on several ranks, each has to become the same.
  void of_copies() const {
    if (recipe_.compress.kind().is_elementwise()) return;
    const char* const instead = "write [compress] kind = \"bf16\"";
    if (recipe_.parallel.tensor > 1) {
      refuse("parallel.tensor", "copies of a parameter on tensor ranks would come apart",
             std::string(instead) + ", or tensor = 1");
    }
    if (recipe_.parallel.pipeline > 1 && traits_of(recipe_.model).ties_first_and_last) {
      refuse("parallel.pipeline", "the weight that the first and the last stage share would differ",
             std::string(instead) + ", or pipeline = 1");
    }
  }

  [[noreturn]] void refuse(std::string_view key, const std::string& why,
                           const std::string& hint) const {
    origins_.fail({"compress.kind", key},
                  "kind = " + toml_string(std::string(recipe_.compress.name())) + " with " +
                      std::string(key) + ": " + why,
                  hint);
  }

 private:
  const Recipe& recipe_;
  const Origins& origins_;
};

}  // namespace

void check_compression(const Recipe& recipe, const Origins& origins) {
  if (!recipe.compress.kind().compresses()) return;
  const CompressionCheck check(recipe, origins);
  switch (recipe.sync.kind().compresses()) {
    case SyncKind::Compresses::kGradients:
      check.of_gradients();
      break;
    case SyncKind::Compresses::kChanges:
      break;
    case SyncKind::Compresses::kPushes:
      check.of_pushes();
      break;
    case SyncKind::Compresses::kNothing:
      check.refuse("sync.kind",
                   std::string(recipe.sync.name()) + " sends parameters, which have to be whole",
                   "write [sync] kind = \"local\" or \"all_reduce\"");
  }
  // A push is of the whole model, from one rank.
  if (recipe.sync.kind().compresses() != SyncKind::Compresses::kPushes) check.of_copies();
}

}  // namespace troika
