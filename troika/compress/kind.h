// The section [compress] of a recipe: what gradients, what workers push, or the changes
// of islands become on the wire.
#pragma once

#include <troika/compress/bucket_hook.h>
#include <troika/compress/codec.h>
#include <troika/config/component.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace troika {

// Names what is compressed: all, or what goes between hosts.
enum class CompressOnly { kEverywhere, kBetweenHosts };
template <>
std::span<const std::string_view> names_of<CompressOnly>();

// The options that every kind has.
struct CompressScope {
  CompressOnly only = CompressOnly::kEverywhere;

  bool operator==(const CompressScope&) const = default;
};
// Returns `keys`, and those of CompressScope.
template <class T>
[[nodiscard]] std::vector<Key> scoped_keys(std::vector<Key> keys) {
  keys.push_back(KeysOf<T>::template choice<&T::only>(
      "only",
      "where it is compressed: everywhere, or what goes between hosts; inside them gradients are "
      "summed as they are"));
  return keys;
}
// Returns the hook, for where the options say.
[[nodiscard]] std::shared_ptr<BucketHook> scoped(std::shared_ptr<BucketHook> hook,
                                                 const CompressScope& scope);

// A kind that [compress] can name. A new one is a file that defines it, and a line in kind.cc.
class CompressKind : public Component {
 public:
  // Returns every kind that there is.
  [[nodiscard]] static std::span<const CompressKind* const> all();
  [[nodiscard]] static const CompressKind& default_kind();

  // Returns whether it compresses anything at all.
  [[nodiscard]] virtual bool compresses() const { return true; }
  // Returns whether an element is treated alike whatever lies beside it. Other kinds would pull
  // apart copies of a parameter that lie in different buckets.
  [[nodiscard]] virtual bool is_elementwise() const { return false; }
  // Returns where it compresses.
  [[nodiscard]] virtual CompressOnly only(const Options&) const {
    return CompressOnly::kEverywhere;
  }
  // Returns whether what is sent of each tensor in a step is near to the tensor, so that its norm
  // is.
  [[nodiscard]] virtual bool keeps_norms(const Options&) const { return true; }
  // Returns the copies of what is compressed that it keeps on a rank, with what is on its way.
  [[nodiscard]] virtual std::int64_t copies() const { return 3; }
  // Makes it; null where nothing is compressed.
  [[nodiscard]] virtual std::shared_ptr<BucketHook> make(const Options& options,
                                                         std::uint64_t seed) const = 0;
  // Makes it for what one process sends to another; null where nothing is compressed, or where it
  // is no matter of two alone. `only` has no part in it.
  [[nodiscard]] virtual std::shared_ptr<const Codec> codec(const Options&, std::uint64_t) const {
    return nullptr;
  }
};

// A kind with a hook; T is a CompressScope with more.
template <class T>
class HookKind : public Declared<CompressKind, T> {
 public:
  [[nodiscard]] CompressOnly only(const Options& options) const final {
    return options.as<T>().only;
  }
  [[nodiscard]] std::shared_ptr<BucketHook> make(const Options& options,
                                                 std::uint64_t seed) const final {
    return scoped(make_hook(options.as<T>(), seed), options.as<T>());
  }
  [[nodiscard]] std::shared_ptr<const Codec> codec(const Options& options,
                                                   std::uint64_t seed) const final {
    return make_codec(options.as<T>(), seed);
  }

 protected:
  HookKind(std::string_view name, std::vector<Key> keys)
      : Declared<CompressKind, T>(name, scoped_keys<T>(std::move(keys))) {}

 private:
  [[nodiscard]] virtual std::shared_ptr<BucketHook> make_hook(const T& options,
                                                              std::uint64_t seed) const = 0;
  [[nodiscard]] virtual std::shared_ptr<const Codec> make_codec(const T&, std::uint64_t) const {
    return nullptr;
  }
};

[[nodiscard]] const CompressKind& no_compress_kind();
[[nodiscard]] const CompressKind& bf16_kind();
[[nodiscard]] const CompressKind& fp16_kind();
[[nodiscard]] const CompressKind& int8_kind();
[[nodiscard]] const CompressKind& qsgd_kind();
[[nodiscard]] const CompressKind& top_k_kind();
[[nodiscard]] const CompressKind& random_k_kind();
[[nodiscard]] const CompressKind& power_sgd_kind();

}  // namespace troika
