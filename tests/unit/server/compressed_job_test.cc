// A job whose workers push compressed gradients: real workers, a coordinator and servers, behind
// real connections.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <troika/server/coordinator_service.h>
#include <troika/server/worker_client.h>

#include <cmath>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "unit/server/support.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kParameters = 50;
constexpr int kServers = 2;

at::Tensor gradients_of(int step, int worker = 0) {
  const auto seed = 10 * static_cast<std::uint64_t>(step) + static_cast<std::uint64_t>(worker);
  return at::randn({kParameters}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

// Servers with SGD, from zeros, and what has reached them.
class Job {
 public:
  Job(std::shared_ptr<const Codec> codec, std::optional<std::int64_t> staleness, int workers,
      int steps, double clip = 0)
      : codec_(std::move(codec)), staleness_(staleness), clip_(clip) {
    for (int shard = 0; shard < kServers; ++shard) start(shard, /*begins=*/true);
    clients_.emplace(kServers, [this](int shard, Deadline) { return address_of(shard); });
    CoordinatorServiceOptions options;
    options.run = "run";
    options.grad_clip = clip;
    options.skips_nonfinite = true;
    options.is_watched = false;
    options.coordinator.workers = workers;
    options.coordinator.last_step = steps;
    options.coordinator.global_batch_size = 12;
    options.coordinator.staleness = staleness;
    coordinator_.emplace(std::move(options), *clients_);
    coordinator_server_.emplace(RpcServerOptions{"127.0.0.1:0"}, [this](const RpcRequest& request) {
      return coordinator_->answer(request);
    });
  }
  ~Job() { clients_->cancel(); }

  // What it has not saved is lost, which is all but the start.
  void restart(int shard) {
    Server& one = servers_[shard];
    one.listening.reset();
    one.service.reset();
    start(shard, /*begins=*/false);
  }

  [[nodiscard]] std::unique_ptr<WorkerClient> worker(int place) {
    WorkerOptions options;
    options.job.shards = kServers;
    options.job.staleness = staleness_;
    options.job.grad_clip = clip_;
    options.coordinator = coordinator_address();
    options.server = [this](int shard, Deadline) { return address_of(shard); };
    options.position = place;
    if (codec_) options.compressor = std::make_shared<PushCompressor>(codec_);
    return std::make_unique<WorkerClient>(std::move(options), kParameters, at::kDouble);
  }

  // Returns the values on the servers, end to end.
  [[nodiscard]] at::Tensor values() {
    at::Tensor all = at::empty({kParameters}, at::kDouble);
    for (int shard = 0; shard < kServers; ++shard) {
      static_cast<void>(clients_->call(shard, "pull",
                                       message_of({{"run", "run"}, {"state", false}}), soon(),
                                       shard_bytes(all, shard, kServers)));
    }
    return all;
  }
  // Returns the bodies of gradients that a server has got.
  [[nodiscard]] std::vector<std::vector<std::byte>> bodies(int shard) {
    const std::lock_guard lock(mutex_);
    return servers_[shard].bodies;
  }
  [[nodiscard]] std::string coordinator_address() const {
    return "127.0.0.1:" + std::to_string(coordinator_server_->port());
  }
  [[nodiscard]] std::string address_of(int shard) const {
    return "127.0.0.1:" + std::to_string(servers_[shard].port.port());
  }

 private:
  struct Server {
    ReservedPort port;
    std::optional<ShardService> service;
    std::optional<RpcServer> listening;
    std::vector<std::vector<std::byte>> bodies;
  };

  void start(int shard, bool begins) {
    Server& one = servers_[shard];
    ShardServiceOptions options;
    options.shard = shard;
    options.shards = kServers;
    options.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
    options.optimizer.weight_decay = 0;
    options.codec = codec_;
    options.file = folder_ / ("shard-" + std::to_string(shard) + ".safetensors");
    one.service.emplace(std::move(options));
    if (begins) {
      const std::int64_t count = shard_range(kParameters, shard, kServers).count;
      one.service->begin("run", {{"a", count, true, 1, {}}}, at::zeros({count}, at::kDouble), {});
    }
    one.listening.emplace(RpcServerOptions{"127.0.0.1:" + std::to_string(one.port.port())},
                          [this, shard](const RpcRequest& request) {
                            if (request.method == "keep" || request.method == "push") {
                              const std::lock_guard lock(mutex_);
                              servers_[shard].bodies.emplace_back(request.body.begin(),
                                                                  request.body.end());
                            }
                            return servers_[shard].service->answer(request);
                          });
  }

  std::shared_ptr<const Codec> codec_;
  std::optional<std::int64_t> staleness_;
  double clip_;
  TemporaryFolder folder_;
  std::mutex mutex_;
  std::array<Server, kServers> servers_;
  std::optional<ShardClients> clients_;
  std::optional<CoordinatorService> coordinator_;
  std::optional<RpcServer> coordinator_server_;
};

RemoteUpdate update_of(double weight, double rate = 1) {
  RemoteUpdate update;
  update.learning_rate = rate;
  update.weight = weight;
  update.mean = update.scale = 1 / weight;
  return update;
}

class CompressedJob : public ServerTest {};

std::vector<std::shared_ptr<const Codec>> codecs() {
  return {bf16_codec(),     fp16_codec(),     int8_codec(16),
          qsgd_codec(9, 3), top_k_codec(0.1), random_k_codec(0.1, 3)};
}

// One worker, whose updates can be told from its compressor alone.
TEST_F(CompressedJob, AppliesWhatItsWorkersHaveSent) {
  for (const std::optional<std::int64_t> staleness : {std::optional<std::int64_t>(0), {}}) {
    for (const auto& codec : codecs()) {
      constexpr int kSteps = 4;
      Job job(codec, staleness, 1, kSteps);
      const auto worker = job.worker(0);
      PushCompressor reference(codec);
      at::Tensor expected = at::zeros({kParameters}, at::kDouble);
      int step = 0;
      while (const auto samples = worker->next_samples()) {
        const double weight = 3.0 + ++step;
        worker->buffer().copy_(gradients_of(step));
        worker->push(update_of(weight));
        at::Tensor sent = gradients_of(step);
        reference.encode(sent, kServers, staleness ? 1 : 1 / weight, step, 0);
        reference.end_push(true);
        expected -= sent / weight;
        for (int shard = 0; shard < kServers; ++shard) {
          const auto payload = reference.payload(shard);
          EXPECT_EQ(job.bodies(shard).back(),
                    std::vector<std::byte>(payload.begin(), payload.end()))
              << codec->describe();
        }
      }
      EXPECT_EQ(step, kSteps);
      EXPECT_LT((job.values() - expected).abs().max().item<double>(), 1e-12) << codec->describe();
    }
  }
}

TEST_F(CompressedJob, CountsTheBytesThatItSends) {
  std::uint64_t plain = 0;
  for (const auto& codec : {std::shared_ptr<const Codec>(), int8_codec(16)}) {
    Job job(codec, std::nullopt, 1, 2);
    const auto worker = job.worker(0);
    while (worker->next_samples()) {
      worker->buffer().copy_(gradients_of(1));
      worker->push(update_of(1));
    }
    // 25 fp64 values, or their codes and the factors of two blocks in whole words.
    for (int shard = 0; shard < kServers; ++shard) {
      for (const auto& body : job.bodies(shard)) EXPECT_EQ(body.size(), codec ? 40U : 200U);
    }
    if (!codec) plain = worker->traffic().sent;
    if (codec) {
      EXPECT_LT(worker->traffic().sent, plain - 4 * 100);
    }
  }
}

// What is clipped is what servers decode.
TEST_F(CompressedJob, ClipsBehindDecompression) {
  constexpr double kClip = 0.25;
  for (const std::optional<std::int64_t> staleness : {std::optional<std::int64_t>(0), {}}) {
    for (const auto& codec : codecs()) {
      Job job(codec, staleness, 1, 1, kClip);
      const auto worker = job.worker(0);
      while (worker->next_samples()) {
        worker->buffer().copy_(gradients_of(1));
        worker->push(update_of(2));
      }
      at::Tensor sent = gradients_of(1);
      PushCompressor(codec).encode(sent, kServers, 1, 1, 0);
      const at::Tensor mean = sent / 2, unclipped = gradients_of(1) / 2;
      ASSERT_GT(mean.norm().item<double>(), kClip);
      const at::Tensor expected = mean * (kClip / (mean.norm().item<double>() + 1e-6));
      EXPECT_LT((job.values() + expected).abs().max().item<double>(), 1e-12) << codec->describe();
      const at::Tensor other = mean * (kClip / (unclipped.norm().item<double>() + 1e-6));
      EXPECT_GT((expected - other).abs().max().item<double>(), 1e-9) << codec->describe();
    }
  }
}

// The worker pushes the same once more, and its error counts once.
TEST_F(CompressedJob, SendsTheSameAgainToAServerThatHasDied) {
  for (const auto& codec : codecs()) {
    constexpr int kSteps = 3;
    const auto train = [&](bool dies) {
      Job job(codec, 0, 1, kSteps);
      const auto worker = job.worker(0);
      int step = 0;
      while (worker->next_samples()) {
        worker->buffer().copy_(gradients_of(++step));
        worker->push(update_of(12));
        if (step == 1 && dies) {
          job.restart(1);
        }
      }
      const auto bodies = job.bodies(1);
      EXPECT_EQ(bodies.size(), kSteps + (dies ? 1U : 0U));
      if (dies) {
        EXPECT_EQ(bodies[0], bodies[1]) << codec->describe();
      }
      return job.values();
    };
    EXPECT_TRUE(train(true).equal(train(false))) << codec->describe();
  }
}

// All of a step is left out where one worker has nothing to push. The error of the others is what
// it was.
TEST_F(CompressedJob, KeepsTheErrorOfAStepThatIsLeftOut) {
  const auto codec = top_k_codec(0.1);
  constexpr int kSteps = 4, kSkipped = 2;
  Job job(codec, 0, 2, kSteps);
  std::vector<std::unique_ptr<WorkerClient>> workers;
  for (int place = 0; place < 2; ++place) workers.push_back(job.worker(place));
  const auto train = [&](int place) {
    WorkerClient& worker = *workers[static_cast<std::size_t>(place)];
    while (const auto samples = worker.next_samples()) {
      const int step = static_cast<int>(samples->step);
      RemoteUpdate update = update_of(6);
      if (step == kSkipped && place == 1) update.skipped = "it is not finite";
      worker.buffer().copy_(gradients_of(step, place) * (step == kSkipped ? 1000 : 1));
      worker.push(update);
    }
  };
  auto other = std::async(std::launch::async, train, 1);
  train(0);
  other.get();
  at::Tensor expected = at::zeros({kParameters}, at::kDouble);
  for (int place = 0; place < 2; ++place) {
    PushCompressor reference(codec);
    for (const int step : {1, 3, 4}) {
      at::Tensor sent = gradients_of(step, place);
      reference.encode(sent, kServers, 1, step, place);
      reference.end_push(true);
      expected -= sent / 12;
    }
  }
  EXPECT_LT((job.values() - expected).abs().max().item<double>(), 1e-12);
}

// Others may have taken what it was at, and nothing tells.
TEST_F(CompressedJob, BeginsWithoutAnErrorWhereAWorkerJoinsAgain) {
  const auto codec = top_k_codec(0.1);
  for (const std::optional<std::int64_t> staleness : {std::optional<std::int64_t>(0), {}}) {
    Job job(codec, staleness, 1, 3);
    const auto worker = job.worker(0);
    int pass = 0;
    while (const auto samples = worker->next_samples()) {
      worker->buffer().copy_(gradients_of(++pass));
      worker->push(update_of(2));
      if (pass > 1) continue;
      RpcClient other(job.coordinator_address());
      const Json gone = {{"worker", 0}, {"run", "run"}};
      static_cast<void>(other.call("leave", message_of(gone), soon()));
    }
    at::Tensor second = gradients_of(2);
    PushCompressor fresh(codec);
    fresh.encode(second, kServers, 1, staleness ? 2 : 1, 0);
    const auto payload = fresh.payload(0);
    ASSERT_GE(job.bodies(0).size(), 2U);
    EXPECT_EQ(job.bodies(0)[1], std::vector<std::byte>(payload.begin(), payload.end()));
  }
}

// fp64 values whose norm is beyond fp32, in which it is sent.
TEST_F(CompressedJob, PushesNothingThatIsNotFinite) {
  Job job(qsgd_codec(9, 3), std::nullopt, 1, 2);
  const auto worker = job.worker(0);
  int step = 0;
  while (worker->next_samples()) {
    ++step;
    worker->buffer().copy_(gradients_of(step) * (step == 1 ? 1e300 : 1));
    worker->push(update_of(1));
  }
  EXPECT_EQ(job.bodies(0).size(), 1U);
  EXPECT_TRUE(at::isfinite(job.values()).all().item<bool>());
}

TEST_F(CompressedJob, RefusesWhatIsCutOff) {
  for (const auto& codec : codecs()) {
    Job job(codec, std::nullopt, 1, 1);
    PushCompressor compressor(codec);
    compressor.encode(gradients_of(1), kServers, 1, 1, 0);
    const auto payload = compressor.payload(0);
    RpcClient client(job.address_of(0));
    const RowTableSpec spec{.name = "rows", .columns = 2};
    const RowGradients rows{spec, at::tensor(std::vector<std::int64_t>{4, 6}, at::kLong),
                            at::ones({2, 2}, at::kDouble)};
    for (const bool has_rows : {false, true}) {
      Json header = push_header(0, 1);
      header["place"] = 0;
      RpcMessage whole;
      if (has_rows) messages::add_rows(header, whole.body, std::vector{rows});
      whole.body.emplace_back(payload);
      std::vector<std::byte> bytes;
      for (const auto part : whole.body) bytes.insert(bytes.end(), part.begin(), part.end());
      for (const std::size_t cut :
           {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{40},
            std::size_t{48}, bytes.size() - 8, bytes.size() - 1}) {
        if (cut >= bytes.size()) continue;
        const RpcMessage message{header.dump(), {std::span(bytes).first(cut)}, {}};
        EXPECT_THROW(static_cast<void>(client.call("push", message, soon())), DataError)
            << codec->describe() << " " << cut;
      }
    }
    Json without_place = push_header(0, 1);
    try {
      static_cast<void>(client.call("push", {without_place.dump(), {payload}, {}}, soon()));
      ADD_FAILURE() << "answered";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("lacks 'place'"));
    }
    EXPECT_TRUE(job.values().equal(at::zeros({kParameters}, at::kDouble)));
    Json header = push_header(0, 1);
    header["place"] = 0;
    static_cast<void>(client.call("push", {header.dump(), {payload}, {}}, soon()));
    EXPECT_FALSE(job.values().equal(at::zeros({kParameters}, at::kDouble)));
  }
}

}  // namespace
}  // namespace troika::test
