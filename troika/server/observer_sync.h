// The process of a job with servers that trains on nothing: it coordinates the workers, and sees
// each step of theirs, evaluates, and saves.
#pragma once

#include <troika/server/coordinator_service.h>
#include <troika/server/remote_sync.h>
#include <troika/server/worker_client.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace troika {

struct ObserverOptions {
  ServerJobOptions job = {};
  AddressOf server = {};
  // A function that is called once workers may join.
  std::function<void()> on_open = {};
  // The optimiser of the servers is to treat all parameters alike, whatever they are to workers.
  bool treats_alike = false;
  // All but what open() says.
  CoordinatorServiceOptions coordinator = {};
};

class ObserverSync final : public RemoteSync, public RemoteView {
 public:
  ObserverSync(Arena& arena, ObserverOptions options);
  ~ObserverSync() override;

  [[nodiscard]] RemoteView* view() override { return this; }
  void open(const RemoteStart& start) override;
  [[nodiscard]] bool is_open() const override { return service_ != nullptr; }
  [[nodiscard]] RemoteStep wait_for_step() override { return service_->wait_for_step(); }
  void fetch() override;
  std::int64_t fetch_all(std::int64_t step, std::span<const NamedState> state) override;
  void close() override;

  // Adds what is done of the steps under way, and goes on from that.
  void save(StateDict& state) const override;
  void load(const StateDict& state) override;

  // Returns which checkpoints may hold what workers have trained on other data than the job's.
  [[nodiscard]] DataDoubt doubt() const { return is_open() ? service_->doubt() : DataDoubt(); }

  // Answers a worker. Throws PeerError before open().
  [[nodiscard]] RpcMessage answer(const RpcRequest& request);

 private:
  [[nodiscard]] Deadline deadline() const { return Deadline::in(options_.job.timeout); }
  [[nodiscard]] std::int64_t states(std::span<const NamedState> state) const;

  ObserverOptions options_;
  ShardClients servers_;
  mutable std::mutex mutex_;
  // The layout and the frozen values that workers ask for, from open() on.
  std::shared_ptr<const std::string> layout_;
  std::shared_ptr<const at::Tensor> frozen_;
  std::unique_ptr<CoordinatorService> service_;
  // Describe a state that was fetched or loaded: what is done after its step, and how much of a
  // round its servers had (ServerShard::round()).
  CoordinatorService::Done done_;
  double round_ = 0;
};

}  // namespace troika
