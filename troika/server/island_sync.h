// A rank of an island that is one worker: its ranks train one model together in any layout, and its
// first rank, the leader, speaks with coordinator and servers for all of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/checkpoint/state_gatherer.h>
#include <troika/comm/group.h>
#include <troika/server/flat_layout.h>
#include <troika/server/remote_sync.h>
#include <troika/server/worker_client.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace troika {

struct IslandOptions {
  AllReduceOptions inside = {};
  Group ranks = {};           // of the island, the leader first
  Seconds longest_wait{600};  // of the others, for an answer to the leader
  WorkerOptions worker = {};  // the leader's; all have the same `job`
};

class IslandSync final : public RemoteWorker {
 public:
  // Collective over the island, as all its calls are. The leader joins the job, as WorkerClient
  // does.
  IslandSync(Arena& arena, IslandOptions options);

  [[nodiscard]] std::optional<DealtSamples> next_samples() override;
  void push(const RemoteUpdate& update) override;

 private:
  [[nodiscard]] bool is_leader() const { return ranks_.rank() == 0; }
  [[nodiscard]] Call call(std::string_view label) const { return {label, Deadline::in(timeout_)}; }
  // The message of the leader to the other ranks: kSamples with a step, the first sample and their
  // number; kWait while the leader waits for samples; kOver after the last step.
  using LeaderMessage = std::array<std::int64_t, 4>;
  static constexpr std::int64_t kOver = 0, kSamples = 1, kWait = 2;
  // Returns the message of the leader, on all ranks.
  [[nodiscard]] LeaderMessage broadcast(const LeaderMessage& own) const;
  void share_layout();
  void share_frozen();
  // Gives all ranks what the leader has pulled.
  void share_values();

  Group ranks_;
  Seconds timeout_, longest_wait_;
  std::optional<WorkerClient> client_;  // the leader's
  FlatLayout layout_;
  std::optional<StateGatherer> gatherer_;  // of trained parameters
};

}  // namespace troika
