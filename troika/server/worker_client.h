// A worker of a job whose parameters lie on servers: it pulls their values, end to end in one
// tensor of the host, and pushes gradients that lie as they do.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/rpc/rpc.h>
#include <troika/server/compared_data.h>
#include <troika/server/coordinator.h>
#include <troika/server/flat_layout.h>
#include <troika/server/push_compressor.h>
#include <troika/server/row_table.h>
#include <troika/server/server_traffic.h>
#include <troika/server/shard_clients.h>
#include <troika/sync/remote.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace troika {

class WorkerData;

// The options that processes of such a job have in common.
struct ServerJobOptions {
  int shards = 1;
  std::optional<std::int64_t> staleness = 0;  // nullopt: any
  bool divides_by_staleness = false;
  double grad_clip = 0;  // largest norm of the mean gradient of a push that is compressed; 0: any
  std::int64_t local_steps = 0;  // ServerSettings
  double outer_lr = 1;           // with local steps
  Seconds lease{60};
  Seconds timeout{60};
  RpcClientOptions connections = {};
};

struct WorkerOptions {
  ServerJobOptions job = {};
  std::string coordinator;                              // its address
  AddressOf server = {};                                // empty: the coordinator is asked
  std::string version, recipe;                          // that all have in common
  std::map<std::string, std::string> model_files = {};  // likewise: digests by title
  std::shared_ptr<ComparedData> data = {};              // likewise; null: any
  std::int64_t position = 0;                            // among the workers
  Seconds start_timeout{300};                           // for the coordinator to be ready
  // Returns whether it is to leave the job once its pass is done; empty: when all is trained.
  std::function<bool()> leaves = {};
  double slow_times = 1;  // as long as it takes it waits over a pass, the pass included
  // Compresses what it pushes; null: it is sent as it is. Servers have the same codec. Its error
  // becomes zero where the worker loses its place in the job.
  std::shared_ptr<PushCompressor> compressor = {};
};

// Returns the bytes of the part of a flat model, a tensor of the host, that a server keeps.
[[nodiscard]] std::span<std::byte> shard_bytes(const at::Tensor& values, int shard, int shards);

// Joins a job as a worker. Gives signs of life on a thread of its own; not thread safe otherwise.
class WorkerClient {
 public:
  // Joins the job, for a model of so many parameters of fp32 or fp64. Throws DeadlineError,
  // PeerError; UsageError where it has another recipe, DataError where it has other data or other
  // files of the model.
  WorkerClient(WorkerOptions options, std::int64_t parameters, at::ScalarType type);
  // Says so where an exception ends this worker: others need not wait for its lease.
  ~WorkerClient();
  WorkerClient(const WorkerClient&) = delete;
  WorkerClient& operator=(const WorkerClient&) = delete;

  // Ask the coordinator how the model lies end to end, and for what is frozen in it.
  [[nodiscard]] FlatLayout layout();
  [[nodiscard]] at::Tensor frozen_values();
  // Makes room for as many parameters as there are.
  void make_buffer(std::int64_t parameters);
  // Returns what is pulled and pushed, [parameters].
  [[nodiscard]] const at::Tensor& buffer() const { return buffer_; }
  // Waits for the next samples, with the newest values in the buffer; nullopt: all is trained, or
  // this worker has left. `waits` is called now and then meanwhile. Throws DeadlineError,
  // PeerError; DataError where the contents of its data turn out to be others.
  [[nodiscard]] std::optional<DealtSamples> next_samples(const std::function<void()>& waits = {});
  // Sends the gradients that are in the buffer. They have to stay there until next_samples().
  // Where they are compressed, norm and clipping are of what servers decode, which the buffer holds
  // then.
  // `rows` are of tables; they are updated together with the parameters.
  void push(const RemoteUpdate& update, std::vector<RowGradients> rows = {});
  // Pulls the newest values to the buffer.
  void pull();
  // Returns the staleness of the last push; 0 where all push together.
  [[nodiscard]] std::int64_t staleness() const { return staleness_; }
  [[nodiscard]] const ServerTraffic& traffic() const { return traffic_; }
  // Returns rows of a table, [ids, columns]; `ids` is [rows], int64.
  [[nodiscard]] at::Tensor pull_rows(const RowTableSpec& table, const at::Tensor& ids);

 private:
  [[nodiscard]] Deadline deadline() const { return Deadline::in(options_.job.timeout); }
  [[nodiscard]] Deadline deadline_of(std::span<const RpcMessage> messages) const;
  [[nodiscard]] bool is_synchronous() const { return options_.job.staleness == 0; }
  void join();
  void join_again(const RendezvousError& error);
  // Returns the header of a call of this worker's.
  [[nodiscard]] std::string own_header();
  [[nodiscard]] std::string address_from_coordinator(int shard, Deadline deadline);
  void send_heartbeats(const std::stop_token& stop);
  [[nodiscard]] WorkerReport report() const;  // of what it has pushed
  void compress();                            // what is pushed; it may turn out not to be finite
  void end_push(bool applied);
  [[nodiscard]] std::span<const std::byte> gradient_bytes(int shard) const;
  void send_gradients();
  // Calls all servers, and counts.
  std::vector<RpcReply> call_servers(std::string_view method, std::span<const RpcMessage> messages,
                                     std::span<const std::span<std::byte>> into = {});
  // Calls the coordinator, again where the connection was lost.
  RpcReply ask(std::string_view method, const std::string& header, Deadline deadline);

  int exceptions_ = std::uncaught_exceptions();
  WorkerOptions options_;
  RpcClient coordinator_;
  ShardClients servers_;
  std::unique_ptr<WorkerData> data_;
  std::mutex mutex_;  // of run_ and worker_, for the thread of signs of life
  std::string run_;
  int worker_ = -1;
  std::optional<Assignment> assignment_;
  std::optional<RemoteUpdate> pushed_;     // of the assignment
  std::vector<RowGradients> pushed_rows_;  // likewise
  Clock::time_point dealt_ = {};           // when it has got its assignment
  std::int64_t staleness_ = 0;
  std::vector<std::int64_t> versions_;  // of the values pulled, by server
  at::Tensor buffer_;
  ServerTraffic traffic_;
  std::jthread heartbeats_;
};

}  // namespace troika
