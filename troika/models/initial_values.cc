#include <troika/base/text.h>
#include <troika/models/initial_values.h>

namespace troika {
namespace {

// clang-format off
std::vector<Key> rename_keys() {
  using K = KeysOf<RenamedTensors>;
  return {
      K::text<&RenamedTensors::match>("match", "a name there, or a prefix and `*`").required(),
      K::text<&RenamedTensors::to>("to", "the model's name, or a prefix and `*`").required(),
  };
}
// clang-format on

bool is_prefix(const std::string& pattern) {
  return pattern.ends_with('*');
}

// The only star is the last character, where there is one.
bool is_plain(const std::string& pattern) {
  const std::size_t star = pattern.find('*');
  return star == std::string::npos || star + 1 == pattern.size();
}

}  // namespace

// clang-format off
std::vector<Key> initial_value_keys() {
  using O = InitialValueOptions;
  using K = KeysOf<O>;
  return {
      K::text<&O::path>("from", "initial values: a run's folder, a checkpoint's, or a safetensors file; relative to the current folder; none: drawn"),
      K::tables<&O::rename>("from_rename", rename_keys, "names in `from` that the model has otherwise, as { match = \"encoder.*\", to = \"*\" }; the first that fits counts"),
      K::texts<&O::ignore>("from_ignore", "patterns of names that are not taken from `from`, as \"fc.*\""),
  };
}
// clang-format on

void check_initial_values(const InitialValueOptions& options, const Origins& origins) {
  if (options.are_drawn()) return;
  for (const RenamedTensors& each : options.rename) {
    const bool agree = is_prefix(each.match) == is_prefix(each.to);
    if (agree && is_plain(each.match) && is_plain(each.to)) continue;
    origins.fail({"model.from_rename"},
                 "from_rename: " + quote(each.match) + " to " + quote(each.to) +
                     ": a * stands at the end of both, or of none",
                 "write { match = \"encoder.*\", to = \"*\" } to leave a prefix out");
  }
}

}  // namespace troika
