// The losses that there are: a new one is a line here, and its file.
#include <troika/loss/loss.h>

#include <array>

namespace troika {

std::span<const LossKind* const> LossKind::all() {
  static const std::array kAll = {&cross_entropy_kind(), &binary_cross_entropy_kind(),
                                  &mean_square_kind()};
  return kAll;
}

const LossKind& LossKind::default_kind() {
  return cross_entropy_kind();
}

void LossKind::check_outputs(const Options&, std::int64_t, const Origins&) const {}

}  // namespace troika
