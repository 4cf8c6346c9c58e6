// A server behind real connections: what it applies is held against a ledger of what it has to.
#include <gmock/gmock.h>
#include <troika/base/file.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "unit/server/support.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

class ShardServer : public ServerTest {};

constexpr const char* kReport = R"({"loss":3.0})";

// Pushes turns 1, 2, ... of a worker with gradients of its own, and cuts connections meanwhile.
class PushingWorker {
 public:
  PushingWorker(const ShardProcess& shard, int worker, int turns)
      : shard_(shard), worker_(worker), turns_(turns), client_(shard.address()) {}

  // Returns the sum of what it has pushed, each turn once.
  double run() {
    std::atomic<bool> over = false;
    std::thread cutting([&] {
      std::mt19937 random(static_cast<unsigned>(worker_));
      std::uniform_int_distribution<int> pause(1, 20);
      while (!over) {
        std::this_thread::sleep_for(std::chrono::milliseconds(pause(random)));
        client_.cancel();
      }
    });
    double sum = 0;
    for (int turn = 1; turn <= turns_; ++turn) {
      const double value = 1000 * worker_ + turn;
      push(turn, value);
      sum += value;
      // Repeated although it was answered, and late.
      if (turn % 3 == 0) push(turn, value);
      if (turn % 5 == 0) push(turn - 1, value - 1);
      done_ = turn;
    }
    over = true;
    cutting.join();
    return sum;
  }
  [[nodiscard]] int done() const { return done_; }
  [[nodiscard]] int lost_calls() const { return lost_calls_; }

 private:
  void push(int turn, double value) {
    const at::Tensor gradient = at::full({shard_.size()}, value, at::kDouble);
    const Deadline deadline = soon();
    while (!deadline.passed()) {
      try {
        static_cast<void>(
            client_.call("push", message_of(push_header(worker_, turn), gradient), deadline));
        return;
      } catch (const PeerError&) {
        ++lost_calls_;
      }
    }
    ADD_FAILURE() << "turn " << turn << " of worker " << worker_ << " was never answered";
  }

  const ShardProcess& shard_;
  int worker_, turns_;
  RpcClient client_;
  std::atomic<int> done_ = 0, lost_calls_ = 0;
};

// Whole numbers are added up in fp64 without an error, in any order.
TEST_F(ShardServer, AppliesEachUpdateOnceThoughItDiesAndConnectionsAreCut) {
  constexpr int kTurns = 30, kDeaths = 6;
  for (const std::int64_t size : {7, 20'000}) {  // in the request, and in shared memory
    ShardProcess shard(size, 1);
    shard.init();
    std::vector<std::unique_ptr<PushingWorker>> workers;
    for (int worker = 0; worker < 3; ++worker) {
      workers.push_back(std::make_unique<PushingWorker>(shard, worker, kTurns));
    }
    std::atomic<double> ledger = 0;
    std::vector<std::thread> threads;
    threads.reserve(workers.size());
    for (const auto& worker : workers) {
      threads.emplace_back([&] { ledger.fetch_add(worker->run()); });
    }
    for (int death = 1; death <= kDeaths; ++death) {
      const Deadline deadline = soon();
      while (workers.front()->done() < death * kTurns / (kDeaths + 1) && !deadline.passed()) {
        std::this_thread::yield();
      }
      shard.kill();
      shard.start();
    }
    int lost_calls = 0;
    for (std::thread& thread : threads) thread.join();
    for (const auto& worker : workers) lost_calls += worker->lost_calls();
    EXPECT_GT(lost_calls, 0) << "no connection was cut";
    const ShardProcess::Values pulled = shard.pull();
    EXPECT_EQ(pulled.version, 3 * kTurns);
    EXPECT_TRUE(at::equal(pulled.values, at::full({size}, -ledger.load(), at::kDouble)))
        << pulled.values[0].item<double>() << " instead of " << -ledger;
  }
}

TEST_F(ShardServer, ComesBackWithWhatItHasSaved) {
  ShardProcess shard(3, 5);
  shard.init();
  RpcClient client(shard.address());
  const at::Tensor ones = at::ones({3}, at::kDouble);
  for (int turn = 1; turn <= 13; ++turn) {
    static_cast<void>(client.call("push", message_of(push_header(0, turn), ones), soon()));
  }
  shard.kill();
  shard.start();
  EXPECT_EQ(shard.pull().version, 10);
  EXPECT_TRUE(at::equal(shard.pull().values, -10 * ones));
  static_cast<void>(client.call("push", message_of(push_header(0, 10), ones), soon()));
  EXPECT_EQ(shard.pull().version, 10) << "it is in the file";
  static_cast<void>(client.call("push", message_of(push_header(0, 13), ones), soon()));
  EXPECT_EQ(shard.pull().version, 11);
}

// Its samples are dealt out again: a server that forgets whom it refuses would train on them twice.
TEST_F(ShardServer, RefusesAFencedWorkerAfterItHasDied) {
  ShardProcess shard(3, 100);
  shard.init();
  RpcClient client(shard.address());
  const at::Tensor ones = at::ones({3}, at::kDouble);
  Json header = push_header(4, 1);
  header["report"] = kReport;
  static_cast<void>(client.call("push", message_of(header, ones), soon()));
  const auto fence = [&] {
    return messages::parse(
        client.call("fence", message_of({{"run", "run"}, {"worker", 4}}), soon()).header, "fence");
  };
  const Json told = fence();
  EXPECT_EQ(messages::value<int>(told, "turn"), 1);
  EXPECT_EQ(messages::value<std::string>(told, "report"), kReport);
  shard.kill();
  shard.start();
  EXPECT_THROW(static_cast<void>(client.call("push", message_of(push_header(4, 2), ones), soon())),
               RendezvousError);
  EXPECT_EQ(fence(), told);
  EXPECT_EQ(shard.pull().version, 1);
}

// Two servers: one applies a step, the other dies before it has.
TEST_F(ShardServer, TakesGradientsAgainThatItHasLostBetweenSumAndUpdate) {
  ShardProcess applied(2, 1), lost(2, 1);
  const at::Tensor twos = at::full({2}, 2.0, at::kDouble);
  const auto ask = [](const ShardProcess& shard, const char* method, Json header,
                      const at::Tensor& body = {}) {
    RpcClient client(shard.address());
    header["run"] = "run";
    header["step"] = 1;
    return messages::parse(client.call(method, message_of(header, body), soon()).header, method);
  };
  const Json workers = {{"workers", {0, 1}}}, how = {{"lr", 1.0}, {"scale", 0.5}};
  for (ShardProcess* shard : {&applied, &lost}) {
    shard->init();
    for (int worker = 0; worker < 2; ++worker) ask(*shard, "keep", {{"worker", worker}}, twos);
    EXPECT_EQ(messages::value<double>(ask(*shard, "sum", workers), "squares"), 2 * 16);
  }
  EXPECT_FALSE(messages::value<bool>(ask(applied, "apply", how), "lost"));
  lost.kill();
  lost.start();
  EXPECT_TRUE(messages::value<bool>(ask(lost, "apply", how), "lost"));
  // The one that has applied it dies, too, and has all that it had.
  applied.kill();
  applied.start();
  for (ShardProcess* shard : {&applied, &lost}) {
    for (int worker = 0; worker < 2; ++worker) ask(*shard, "keep", {{"worker", worker}}, twos);
    const Json sum = ask(*shard, "sum", workers);
    EXPECT_TRUE(messages::value<std::vector<int>>(sum, "missing").empty());
    EXPECT_EQ(messages::value<double>(sum, "squares"), 2 * 16);
    EXPECT_FALSE(messages::value<bool>(ask(*shard, "apply", how), "lost"));
    EXPECT_EQ(shard->pull().version, 1);
    EXPECT_TRUE(at::equal(shard->pull().values, -twos));
  }
}

TEST_F(ShardServer, BeginsARunOnce) {
  ShardProcess shard(3, 1);
  shard.init();
  RpcClient client(shard.address());
  const at::Tensor ones = at::ones({3}, at::kDouble);
  static_cast<void>(client.call("push", message_of(push_header(0, 1), ones), soon()));
  shard.init();  // the answer to the first request was lost
  EXPECT_EQ(shard.pull().version, 1);
  EXPECT_TRUE(at::equal(shard.pull().values, -ones));
}

TEST_F(ShardServer, RefusesWhatIsNoRequestOfItsRun) {
  ShardProcess shard(3, 1);
  shard.init();
  RpcClient client(shard.address());
  const at::Tensor ones = at::ones({3}, at::kDouble);
  static_cast<void>(client.call("push", message_of(push_header(0, 1), ones), soon()));
  const auto with = [](Json header, const char* key, const Json& value) {
    header[key] = value;
    return header;
  };
  const Json push = push_header(0, 2);
  Json lacking = push;
  lacking.erase("turn");
  Json pieces = shard.init_header("run")["pieces"];
  pieces[0]["count"] = std::int64_t{1} << 40;
  struct Case {
    const char* method;
    std::string header;
    at::Tensor body;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {"push", "no JSON", ones, "push is no JSON object"},
      {"push", "[1]", ones, "push is no JSON object"},
      {"push", "", ones, "push is no JSON object"},
      {"push", lacking.dump(), ones, "lacks 'turn'"},
      {"push", with(push, "turn", "two").dump(), ones, "'turn', or has another type"},
      {"push", push.dump(), at::ones({4}, at::kDouble), "pushed 4 values of a gradient"},
      {"push", push.dump(), at::ones({100'000}, at::kDouble), "pushed 100000 values"},
      {"push", push.dump(), {}, "pushed 0 values"},
      {"push", push.dump(), at::ones({3}, at::kFloat), "cut off"},
      {"push", with(push, "run", "other").dump(), ones, "server 0 is of another run"},
      {"pull", R"({"run": "other", "state": false})", {}, "server 0 is of another run"},
      {"stop", R"({"run": "other"})", {}, "server 0 is of another run"},
      {"init", shard.init_header("other").dump(), ones, "server 0 is of another run"},
      {"keep", R"({"run": "run", "worker": 0, "step": 1})", at::ones({2}, at::kDouble),
       "pushed 2 values"},
      {"sum", R"({"run": "run", "step": 1, "workers": "all"})", {}, "'workers', or has another"},
      {"dance", R"({"run": "run"})", {}, "knows no 'dance'"},
  };
  for (const Case& one : cases) {
    RpcMessage message{one.header, {}, {}};
    if (one.body.defined()) message.body.push_back(messages::bytes_of(one.body));
    try {
      static_cast<void>(client.call(one.method, message, soon()));
      ADD_FAILURE() << "answered: " << one.method << " " << one.header;
    } catch (const PeerError& error) {
      ADD_FAILURE() << "callers would wait for it: " << error.what();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(one.reason)) << one.method << " " << one.header;
    }
  }
  // A new one, whose memory nobody asks for in vain.
  ShardProcess fresh(3, 1);
  RpcClient other(fresh.address());
  EXPECT_THROW(static_cast<void>(other.call(
                   "init", message_of(with(fresh.init_header(), "pieces", pieces), ones), soon())),
               DataError);
  EXPECT_EQ(shard.pull().version, 1);
  EXPECT_TRUE(at::equal(shard.pull().values, -ones));
  static_cast<void>(client.call("push", message_of(push, ones), soon()));
  EXPECT_EQ(shard.pull().version, 2);
}

TEST(ShardServiceFile, NamesAFolderThatCannotBeMade) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "taken", "a file");
  ShardServiceOptions options;
  options.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
  ShardService service(std::move(options));
  service.begin("run", {{"a", 2}}, at::ones({2}, at::kDouble), {});
  try {
    service.save_to(folder / "taken" / "below" / "server.safetensors");
    ADD_FAILURE() << "a folder below a file";
  } catch (const StorageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot make the folder"));
    EXPECT_THAT(error.what(), HasSubstr("taken/below"));
  }
}

}  // namespace
}  // namespace troika::test
