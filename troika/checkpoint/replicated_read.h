// Reads values that several ranks hold alike once: one of them reads from the files, and sends them
// to the others. Ranks of any layout: those that want the same part of the same tensor are
// replicas. Where the page cache of one host has the files for all ranks, each reads for itself.
#pragma once

#include <troika/comm/group.h>
#include <troika/param/state_dict.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace troika {

// Who reads a part that several ranks want.
enum class PartReaders {
  kOne,
  // Each of them, where all ranks are on one host; one of them otherwise. For files that cost a
  // rank no more than a copy: in a folder, not encrypted.
  kAllOfOneHost
};

// Call the constructor, read() and share() on all ranks, in this order; a rank that fails in read()
// has to tell the others before share().
class ReplicatedRead {
 public:
  // Collective: learns which ranks want which parts, and divides the reading among them, by bytes.
  // `wanted` are this rank's; views, which live as long as this. `timeout` is for each collective.
  // All ranks give the same `readers`.
  ReplicatedRead(Group world, std::span<const StateTensor> wanted, Seconds timeout,
                 PartReaders readers = PartReaders::kOne);

  // Calls `read_one` with each part that this rank reads. Not collective.
  void read(const std::function<void(const StateTensor&)>& read_one) const;
  // Collective: sends them to the ranks that want the same, in pieces of at most kChunkBytes. Takes
  // no more memory than a piece for values of a device, and none for those of the host.
  void share() const;
  // Returns the bytes that this rank reads.
  [[nodiscard]] std::int64_t bytes_read() const;

  static constexpr std::int64_t kChunkBytes = std::int64_t{16} << 20;

 private:
  void divide(std::span<const StateTensor> wanted);
  // A part that ranks want, in an order that all of them have.
  struct Shared {
    std::vector<int> ranks;  // that want it, ascending
    int reader = 0;
    const StateTensor* own = nullptr;  // where this rank is one of them
  };
  void share_one(const Shared& part) const;

  Group world_;
  Seconds timeout_;
  std::vector<Shared> parts_;
};

}  // namespace troika
