// The kinds of sync that there are: a new one is a line here, and its file.
#include <troika/sync/kind.h>

#include <array>

namespace troika {
namespace {

struct AllReduceKeys {
  bool operator==(const AllReduceKeys&) const = default;
};

class AllReduceKind final : public Declared<SyncKind, AllReduceKeys> {
 public:
  AllReduceKind() : Declared("all_reduce", {}) {}

  [[nodiscard]] std::int64_t island(const Options&, std::int64_t) const override { return 0; }
  [[nodiscard]] Compresses compresses() const override { return Compresses::kGradients; }
  [[nodiscard]] std::unique_ptr<ReplicaSync> make(const Options&, Arena& arena,
                                                  const SyncGroups& groups) const override {
    return std::make_unique<AllReduceSync>(
        arena,
        AllReduceOptions{
            {groups.world}, groups.partial, groups.timeout, groups.patience, groups.compress});
  }
};

}  // namespace

const SyncKind& all_reduce_kind() {
  static const AllReduceKind kKind;
  return kKind;
}

std::span<const SyncKind* const> SyncKind::all() {
  static const std::array kAll = {&all_reduce_kind(), &local_kind(), &gossip_kind(),
                                  &server_kind()};
  return kAll;
}

const SyncKind& SyncKind::default_kind() {
  return all_reduce_kind();
}

}  // namespace troika
