// What a server answers. One keeps a shard of the parameters, applies what workers push, and saves
// itself to a file now and then. A server that starts again goes on from that file as soon as a
// process of the same run asks for something.
//
//   init      values and state of its shard, from the coordinator: begins a run
//   push      an update of a worker's
//   keep, sum, apply   an update of several workers', together
//   pull      the values; with "state": and the optimiser's state
//   rows      rows of a table, which are made where they are not there
//   fence     refuses a worker from now on
//   save      saves itself now
//   stop      ends the process
#pragma once

#include <troika/checkpoint/encryption.h>
#include <troika/compress/codec.h>
#include <troika/rpc/rpc.h>
#include <troika/server/server_shard.h>

#include <condition_variable>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace troika {

struct ShardServiceOptions {
  int shard = 0, shards = 1;
  OptimizerOptions optimizer = {};
  std::filesystem::path file = {};        // that it saves itself to; empty: none
  std::int64_t save_every = 0;            // updates; 0: only when it is asked to
  std::optional<EncryptionKey> key = {};  // of that file
  // Decodes what workers push; null: gradients come as they are.
  std::shared_ptr<const Codec> codec = {};
};

// Describes the state that a run begins with.
struct ShardStart {
  std::int64_t version = 0;  // updates that are in the values
  std::int64_t step = 0;     // the last synchronous step that is
  double round = 0;          // ServerShard::round()
};

// Thread safe.
class ShardService {
 public:
  explicit ShardService(ShardServiceOptions options);
  ~ShardService();

  // Answers a request. Throws PeerError while it has no values of that run, which callers wait for;
  // RendezvousError where it has those of another one, or the worker is fenced off; DataError where
  // the request is none.
  [[nodiscard]] RpcMessage answer(const RpcRequest& request);
  // Begins a run as init does, for a process that hosts it. `values` [size], with which the state
  // of the optimiser is zero, or values and state [(1 + states) size]. Throws DataError where the
  // sizes do not fit.
  void begin(const std::string& run, std::vector<ShardSegment> segments, const at::Tensor& values,
             const ShardStart& start);
  // Write and read a file with all that it keeps, for a process that hosts it. restore() begins a
  // run. Throw DataError, and UsageError where the file is of other parameters.
  void save_to(const std::filesystem::path& file);
  void restore(const std::filesystem::path& file, const std::string& run);
  // Waits until it is asked to end, and for `patience` at most; returns whether it is.
  [[nodiscard]] bool wait_for_stop(Seconds patience);

 private:
  void begin_run(const std::string& run, std::vector<ShardSegment> segments,
                 const at::Tensor& values, const ShardStart& start);
  RpcMessage pull(bool with_state);
  // Returns the gradient that a worker has sent as `body`; it lasts until the next one.
  [[nodiscard]] at::Tensor gradient_of(std::span<const std::byte> body, std::int64_t round,
                                       int sender);
  void read_file(const std::filesystem::path& file, const std::string& run);
  void check_run(const std::string& run) const;
  // Warns once of updates that a worker has seen, and this server has lost.
  void warn_of_lost_updates(std::int64_t version);
  ServerShard& shard_of(const std::string& run);
  void load(const std::string& run);
  void save();
  void write_file(const std::filesystem::path& file) const;
  void save_if_due();

  ShardServiceOptions options_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stops_ = false;
  std::string run_;
  std::vector<ShardSegment> segments_;
  std::unique_ptr<ServerShard> shard_;
  std::int64_t saved_version_ = 0;
  std::shared_ptr<at::Tensor> pulled_;  // [size()], as of pulled_version_; replies share it
  std::int64_t pulled_version_ = 0;
  at::Tensor decoded_;  // [size()], of the last payload
  bool has_warned_of_loss_ = true;
};

}  // namespace troika
