// The kinds of compression that there are: a new one is a line here, and its file.
#include <troika/compress/compressors.h>
#include <troika/compress/kind.h>

#include <array>
#include <utility>

namespace troika {
namespace {

struct NoKeys {
  bool operator==(const NoKeys&) const = default;
};

class NoCompressKind final : public Declared<CompressKind, NoKeys> {
 public:
  NoCompressKind() : Declared("none", {}) {}

  [[nodiscard]] bool compresses() const override { return false; }
  [[nodiscard]] bool is_elementwise() const override { return true; }
  [[nodiscard]] std::int64_t copies() const override { return 0; }
  [[nodiscard]] std::shared_ptr<BucketHook> make(const Options&, std::uint64_t) const override {
    return nullptr;
  }
};

}  // namespace

template <>
std::span<const std::string_view> names_of<CompressOnly>() {
  static constexpr std::array<std::string_view, 2> kNames = {"everywhere", "between_hosts"};
  return kNames;
}

std::shared_ptr<BucketHook> scoped(std::shared_ptr<BucketHook> hook, const CompressScope& scope) {
  return scope.only == CompressOnly::kBetweenHosts ? between_hosts(std::move(hook)) : hook;
}

const CompressKind& no_compress_kind() {
  static const NoCompressKind kKind;
  return kKind;
}

std::span<const CompressKind* const> CompressKind::all() {
  static const std::array kAll = {&no_compress_kind(), &bf16_kind(),     &fp16_kind(),
                                  &int8_kind(),        &qsgd_kind(),     &top_k_kind(),
                                  &random_k_kind(),    &power_sgd_kind()};
  return kAll;
}

const CompressKind& CompressKind::default_kind() {
  return no_compress_kind();
}

}  // namespace troika
