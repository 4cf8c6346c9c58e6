// The collectives, made of messages between pairs of members. Every reduction is in
// ascending order of members, so the result is the same bits on every member and in every run. With
// n members and N bytes of input, a member sends
//
//   all_reduce      small    (n-1) N           in 1 step: the whole tensor to each member
//                   large    2 (n-1)/n N       in 2 steps: reduce_scatter, all_gather, block by
//                   block
//   reduce_scatter           (n-1)/n N         in 1 step: each member's part straight to it
//   all_gather               (n-1) N           in 1 step
//   all_to_all               (n-1)/n N         in 2 steps; the first one compares sizes
//   broadcast                at most log2(n) N in log2(n) steps down a binomial tree, pipelined
//   gather                   N                 in 1 step
//   scatter                  (n-1)/n N         in 1 step, by the root
//   barrier                  log2(n) bytes     in log2(n) steps (dissemination)
//
// reduce_scatter and all_gather send as few bytes as a ring does (Patarasuk and Yuan 2009), and
// large all_reduce too, but in one step a phase where a ring takes n-1.
#pragma once

#include <troika/comm/group.h>
#include <troika/comm/p2p/transport.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace troika {

namespace detail {
class Parts;
}

// The tag that tells one operation's messages from the others', and their deadline.
struct OperationScope {
  std::uint32_t tag;  // and the next one
  Deadline deadline;
  OperationRecord record = {};
};

// Thrown when two members do not agree on the size of what one of them gives to the other.
class SizesDiffer : public std::runtime_error {
 public:
  enum class Ours { kSent, kExpected };
  // Sizes are in bytes. `which` says what `ours` is, and `theirs` is the other.
  SizesDiffer(int peer, Ours which, std::int64_t ours, std::int64_t theirs)
      : std::runtime_error("sizes differ"),
        peer_(peer),
        which_(which),
        ours_(ours),
        theirs_(theirs) {}
  [[nodiscard]] int peer() const { return peer_; }
  // Returns what the peer does: "sends 12 B where 16 B are expected".
  [[nodiscard]] std::string text() const;

 private:
  int peer_;
  Ours which_;
  std::int64_t ours_;
  std::int64_t theirs_;
};

constexpr std::string_view kSizesHint = "what a rank sends to another is what that expects from it";

// The blocking collectives, one operation at a time. All tensors are contiguous and in host memory.
// Throws TransportError.
class Collectives {
 public:
  // The sizes from which on the algorithms change; the same for all members.
  struct Tuning {
    std::int64_t at_once_bytes;  // all_reduce in one step while all peers send no more than this
    std::int64_t block_bytes;    // of reductions in blocks; a multiple of 8
  };

  // `transport` must outlive this.
  explicit Collectives(Transport& transport);
  Collectives(Transport& transport, Tuning tuning);

  void all_reduce(const at::Tensor& tensor, ReduceOp op, const OperationScope& scope);
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      std::span<const std::int64_t> counts, ReduceOp op,
                      const OperationScope& scope);
  void all_gather(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> counts, const OperationScope& scope);
  // Throws SizesDiffer too.
  void all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                  const at::Tensor& input, std::span<const std::int64_t> input_counts,
                  const OperationScope& scope);
  void broadcast(const at::Tensor& tensor, int root, const OperationScope& scope);
  void gather(const at::Tensor& output, const at::Tensor& input, int root,
              const OperationScope& scope);
  void scatter(const at::Tensor& output, const at::Tensor& input, int root,
               const OperationScope& scope);
  void barrier(const OperationScope& scope);

 private:
  // Compares with each peer what each of the two sends and expects, unless that is nothing at all.
  // A peer that is wrong about that keeps the other one waiting until the deadline.
  void compare_sizes(const detail::Parts& to, const detail::Parts& from,
                     const OperationScope& scope);
  void all_reduce_at_once(const at::Tensor& tensor, ReduceOp op, const OperationScope& scope);
  // Returns at least `bytes` of reused memory; the first-touch cost of fresh pages would dominate.
  [[nodiscard]] at::Tensor scratch(std::int64_t bytes);

  Transport& transport_;
  int rank_;
  int size_;
  Tuning tuning_;
  at::Tensor scratch_;
};

}  // namespace troika
