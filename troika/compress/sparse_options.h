// Internal. What top_k and random_k have in common as kinds.
#pragma once

#include <troika/compress/kind.h>
#include <troika/config/toml_text.h>

#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct SparseOptions : CompressScope {
  double fraction = 0.01;

  bool operator==(const SparseOptions&) const = default;
};

[[nodiscard]] inline std::vector<Key> sparse_keys() {
  return {KeysOf<SparseOptions>::number<&SparseOptions::fraction>(
      "fraction",
      {.min = 0, .max = 1, .lower = NumberRange::End::kOpen, .upper = NumberRange::End::kClosed},
      "of the values that are sent")};
}

// Sends little of a large tensor, and perhaps nothing of a small one.
class SparseKind : public HookKind<SparseOptions> {
 public:
  [[nodiscard]] bool keeps_norms(const Options& options) const override {
    return options.as<SparseOptions>().fraction == 1;
  }

 protected:
  explicit SparseKind(std::string_view name) : HookKind(name, sparse_keys()) {}
};

namespace detail {

// Returns what a codec of such a kind says of itself.
[[nodiscard]] inline std::string describe_sparse(std::string_view name, double fraction) {
  return std::string(name) + " (fraction " + toml_number(fraction) + ")";
}

}  // namespace detail
}  // namespace troika
