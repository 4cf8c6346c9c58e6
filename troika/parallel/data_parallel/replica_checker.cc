#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/parallel/data_parallel/replica_checker.h>
#include <troika/parallel/data_parallel/value_agreement.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <sstream>

namespace troika::detail {

ReplicaChecker::ReplicaChecker(std::vector<NamedTensor> parameters,
                               std::span<const GradientSlot> slots, WriteTracker& writes,
                               Session session, Values values)
    : parameters_(std::move(parameters)),
      slots_(slots),
      writes_(writes),
      session_(std::move(session)) {
  if (values == Values::kChecked && session_.size() > 1) digest_.emplace(parameters_);
}

// Writes tell at once, and cost nothing to count; values tell in time, also of writes that are not
// counted.
double ReplicaChecker::checksum() const {
  const bool looks = digest_ && averages_ >= values_equal_until_;
  const std::uint64_t digest = looks ? digest_->of_segment(averages_) : 0;
  // Few bits, so that sums over many ranks are exact; others in each step, so that two sums which
  // share them do so once.
  return static_cast<double>(mix_bits(writes_.count() + (averages_ << 32) + mix_bits(digest)) & 15);
}

void ReplicaChecker::resolve() {
  const CountedWrites counted{static_cast<std::int64_t>(writes_.count()), writes_.moved()};
  if (agree_on_values(session_, parameters_, counted) == Agreement::kSynchronised) {
    values_equal_until_ = averages_ + ValueDigest::kPasses;
  }
}

void ReplicaChecker::reset() {
  writes_.reset();
  writes_before_update_.clear();
}

void ReplicaChecker::begin_update() {
  writes_.find_moves();
  writes_before_update_ = writes_.writes();
}

// An update gathers values, and with them makes equal what was written to on some ranks only before
// it: each rank's own shards of it have stayed. The numbers of writes still tell.
void ReplicaChecker::compare_writes_before_update() const {
  std::string own;
  for (const std::uint32_t count : writes_before_update_) own += std::to_string(count) + "\n";
  const std::vector<std::string> all = session_.gather(own, "writes before the last step");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream first(all[0]), other(all[rank]);
    std::size_t slot = 0;
    for (std::string a, b; std::getline(first, a) && std::getline(other, b) && a == b;) ++slot;
    throw UsageError(title_of(slots_[std::min(slot, slots_.size() - 1)]) +
                         " was written to on some ranks only before the optimiser's step, not "
                         "alike on ranks 0 and " +
                         std::to_string(rank),
                     "do what writes to it on every rank; broadcast_from(0) gives all of them the "
                     "values of rank 0, a mixture by now");
  }
}

}  // namespace troika::detail
