// No loss of ours: the model returns one.
#include <troika/base/error.h>
#include <troika/loss/loss.h>

namespace troika {
namespace {

struct NoneOptions {
  bool operator==(const NoneOptions&) const = default;
};

class NoneKind final : public Declared<LossKind, NoneOptions> {
 public:
  NoneKind() : Declared("none", {}) {}

  [[nodiscard]] bool is_of_model() const override { return true; }
  [[nodiscard]] bool takes_outputs() const override { return false; }
  [[nodiscard]] TargetMeaning target_meaning() const override { return TargetMeaning::kValues; }
  // A model without a loss of its own asks before it is refused.
  [[nodiscard]] TensorSpec targets(std::int64_t outputs, std::string_view) const override {
    TensorSpec spec{"targets", at::kFloat, {outputs}};
    spec.role = TensorRole::kTarget;
    return spec;
  }
  [[nodiscard]] std::shared_ptr<const Loss> make(const Options&) const override {
    troika::check(false, "a loss asked of loss = \"none\"");
    return nullptr;
  }
};

}  // namespace

const LossKind& none_kind() {
  static const NoneKind kKind;
  return kKind;
}

}  // namespace troika
