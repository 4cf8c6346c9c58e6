// The optimisers that there are: a new one is a line here, and its file.
#include <troika/optim/kinds.h>

namespace troika {

std::span<const OptimizerKind* const> OptimizerKind::all() {
  static const std::array kAll = {&sgd_kind(), &adamw_kind(), &lamb_kind(), &lars_kind(),
                                  &lion_kind()};
  return kAll;
}

const OptimizerKind& OptimizerKind::default_kind() {
  return adamw_kind();
}

}  // namespace troika
