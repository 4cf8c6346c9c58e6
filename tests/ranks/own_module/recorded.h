// What a DataParallel does on its group, as the flight recorder has it.
#pragma once

#include <troika/observe/recorder.h>

#include <filesystem>
#include <numeric>
#include <thread>
#include <vector>

#include "ranks/own_module/own_module.h"

namespace troika::test {

// A session whose operations can be read while they run.
class RecordedSession {
 public:
  explicit RecordedSession(Rank& rank) : path_(recorder_path(rank.folder(), rank.index())) {
    std::vector<int> all_ranks(static_cast<std::size_t>(rank.size()));
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
    EngineOptions options = rank.options();
    options.observers.recorder = Recorder::create(path_, rank.index(), "here");
    group_ = make_group("data", all_ranks, rank.index(), options);
  }
  [[nodiscard]] Session session() const { return Session::on(group_, Seconds(30)); }
  // Those so far, in the order in which they were started.
  [[nodiscard]] std::vector<RecordedOperation> operations() const {
    return read_recorder(path_).operations;
  }
  [[nodiscard]] std::vector<RecordedOperation> buckets() const {
    std::vector<RecordedOperation> found = operations();
    std::erase_if(found,
                  [](const auto& each) { return !each.label.starts_with("gradient bucket"); });
    return found;
  }
  // Returns whether there is such a one, and it ends before long. No call waits for it.
  [[nodiscard]] bool ends(std::size_t index) const {
    const Deadline deadline = Deadline::in(Seconds(20));
    while (!deadline.passed()) {
      const auto all = buckets();
      if (index < all.size() && all[index].state != RecordedOperation::State::kRunning) {
        return all[index].state == RecordedOperation::State::kFinished;
      }
      std::this_thread::yield();
    }
    return false;
  }

 private:
  std::filesystem::path path_;
  Group group_;
};

}  // namespace troika::test
