// A worker of one rank, which holds all of the model.
#pragma once

#include <troika/server/remote_sync.h>
#include <troika/server/worker_client.h>

#include <optional>

namespace troika {

class WorkerSync final : public RemoteWorker {
 public:
  // Joins the job, as WorkerClient does.
  WorkerSync(Arena& arena, WorkerOptions options);

  [[nodiscard]] std::optional<DealtSamples> next_samples() override;
  void push(const RemoteUpdate& update) override;

 private:
  WorkerClient client_;
};

}  // namespace troika
