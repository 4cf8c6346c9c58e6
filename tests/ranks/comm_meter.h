// What an operation has put on the wire, and how often it has waited, from the flight recorder.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/observe/recorder.h>

#include <numeric>
#include <string>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {

struct Traffic {
  std::uint64_t sent;
  std::uint32_t steps;
};

class Meter {
 public:
  explicit Meter(const Rank& rank) : Meter(rank, rank.options()) {}
  Meter(const Rank& rank, const EngineOptions& options)
      : path_(recorder_path(rank.folder(), rank.index())), group_(watched_group(rank, options)) {}

  [[nodiscard]] const Group& group() const { return group_; }
  [[nodiscard]] std::uint64_t size() const { return static_cast<std::uint64_t>(group_.size()); }

  // That of the last operation.
  [[nodiscard]] Traffic last() const {
    const RecordedOperation operation = read_recorder(path_).operations.back();
    EXPECT_EQ(operation.state, RecordedOperation::State::kFinished);
    return {operation.sent, operation.steps};
  }
  void expect(const char* what, Traffic expected) const {
    const Traffic found = last();
    EXPECT_EQ(found.sent, expected.sent) << what << " on member " << group_.rank();
    EXPECT_EQ(found.steps, expected.steps) << what << " on member " << group_.rank();
  }

 private:
  [[nodiscard]] Group watched_group(const Rank& rank, EngineOptions options) const {
    options.observers.recorder = Recorder::create(path_, rank.index(), "here");
    std::vector<int> ranks(static_cast<std::size_t>(rank.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return make_group("data", ranks, rank.index(), options);
  }

  std::filesystem::path path_;
  Group group_;
};

// Divides by every number of members up to 4, and fits into one block and one window's parts.
inline constexpr std::int64_t kSmall = 24;                      // fp32: 96 bytes
inline constexpr std::int64_t kLarge = std::int64_t{12} << 14;  // fp32: 768 KiB
inline constexpr std::int64_t kMedium = std::int64_t{12} << 9;  // fp32: 24 KiB
inline constexpr std::uint64_t kMediumBytes = kMedium * 4;
inline constexpr std::uint64_t kSmallBytes = kSmall * 4, kLargeBytes = kLarge * 4;
inline constexpr std::int64_t kHuge = std::int64_t{12} << 19;  // fp32: 24 MiB
inline constexpr std::uint64_t kHugeBytes = kHuge * 4;

// Every member sends to the next one.
inline void pass_on(const Group& group, const at::Tensor& tensor) {
  const at::Tensor received = at::empty_like(tensor);
  const Transfer transfers[] = {
      {Transfer::Direction::kSend, (group.rank() + 1) % group.size(), tensor},
      {Transfer::Direction::kReceive, (group.rank() + group.size() - 1) % group.size(), received}};
  group.exchange(transfers, Rank::call("x")).wait();
}

}  // namespace troika::test
