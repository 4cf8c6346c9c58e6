// A coordinator behind real connections: who is let in, what is refused, and how a worker leaves.
#include <gmock/gmock.h>
#include <troika/server/coordinator_service.h>

#include "unit/server/support.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

class CoordinatorServer : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    if (IsSkipped()) return;
    shard_.emplace(3, 1);
    shard_->init();
    shards_.emplace(1, [this](int, Deadline) { return shard_->address(); });
    CoordinatorServiceOptions options;
    options.run = "run";
    options.version = "1";
    options.recipe = "a recipe";
    options.coordinator.workers = 2;
    options.coordinator.last_step = 2;
    options.coordinator.global_batch_size = 12;
    options.coordinator.staleness = std::nullopt;
    service_.emplace(std::move(options), *shards_);
    server_.emplace(RpcServerOptions{"127.0.0.1:0"},
                    [this](const RpcRequest& request) { return service_->answer(request); });
    client_.emplace("127.0.0.1:" + std::to_string(server_->port()));
  }

  Json ask(const char* method, const Json& header) {
    return messages::parse(client_->call(method, message_of(header), soon()).header, method);
  }
  int join(std::int64_t place) {
    return messages::value<int>(
        ask("join", {{"version", "1"}, {"recipe", "a recipe"}, {"place", place}}), "worker");
  }
  static Json call_of(int worker) { return {{"worker", worker}, {"run", "run"}}; }
  static Json report_of(int worker, std::int64_t turn) {
    Json header = call_of(worker);
    header["turn"] = turn;
    header["report"] = messages::json_of(WorkerReport{.loss = 1, .weight = 6, .valid = 6});
    return header;
  }

  std::optional<ShardProcess> shard_;
  std::optional<ShardClients> shards_;
  std::optional<CoordinatorService> service_;
  std::optional<RpcServer> server_;
  std::optional<RpcClient> client_;
};

TEST_F(CoordinatorServer, RefusesWhatIsNoRequestOfItsJob) {
  const int one = join(0), other = join(1);
  struct Case {
    const char* method;
    std::string header, reason;
  };
  const std::vector<Case> cases = {
      {"join", "no JSON", "join is no JSON object"},
      {"join", R"({"version": "2", "recipe": "a recipe", "place": 0})", "runs troika 2"},
      {"join", R"({"version": "1", "recipe": "another", "place": 0})", "has another recipe"},
      {"join", R"({"version": "1", "recipe": "a recipe"})", "lacks 'place'"},
      {"turn", "", "turn is no JSON object"},
      {"turn", R"({"run": "run"})", "lacks 'worker'"},
      {"turn", R"({"worker": 7, "run": "run"})", "worker 7 is none of the job"},
      {"turn", R"({"worker": 0, "run": "before"})", "of another run"},
      {"turn", R"({"worker": 0, "run": "run", "turn": 1, "report": 5})", "lacks 'loss'"},
      {"beat", R"({"worker": 7, "run": "run"})", "worker 7 is none of the job"},
      {"beat", R"({"worker": 0, "run": "before"})", "of another run"},
      {"leave", R"({"worker": 0, "run": "before"})", "of another run"},
      {"dance", R"({"worker": 0, "run": "run"})", "knows no 'dance'"},
  };
  for (const Case& each : cases) {
    try {
      static_cast<void>(client_->call(each.method, {each.header, {}, {}}, soon()));
      ADD_FAILURE() << "answered: " << each.method << " " << each.header;
    } catch (const PeerError& error) {
      ADD_FAILURE() << "callers would wait for it: " << error.what();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(each.reason)) << each.method << " " << each.header;
    }
  }
  for (const int worker : {one, other}) {
    EXPECT_EQ(messages::value<std::string>(ask("turn", call_of(worker)), "state"), "samples");
  }
}

// The same recipe names a file of that name on each host.
TEST_F(CoordinatorServer, RefusesAWorkerWithOtherFilesOfTheModel) {
  CoordinatorServiceOptions options;
  options.version = "1";
  options.recipe = "a recipe";
  options.model_files = {{"the model's file 'a.pt'", "1"}, {"the model's file 'b.pt'", "2"}};
  CoordinatorService service(options, *shards_);
  const auto join = [&](const Json& files) {
    const Json header = {{"version", "1"},
                         {"recipe", "a recipe"},
                         {"place", 0},
                         {"host", "there"},
                         {"model_files", files}};
    try {
      RpcRequest request;
      request.method = "join";
      request.header = header.dump();
      return service.answer(request).header;
    } catch (const DataError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(join({{"the model's file 'a.pt'", "1"}, {"the model's file 'b.pt'", "3"}}),
              HasSubstr("the model's file 'b.pt' has other contents on host there, where a worker "
                        "joins, than on host "));
  EXPECT_THAT(join({{"the model's file 'b.pt'", "2"}}), HasSubstr("'a.pt' has other contents"));
  EXPECT_THAT(join(options.model_files), HasSubstr("\"worker\""));
}

TEST_F(CoordinatorServer, LetsAWorkerLeaveBehindItsPass) {
  const int one = join(0), other = join(1);
  for (const int worker : {one, other}) ask("turn", call_of(worker));
  Json last = report_of(one, 1);
  last["leaves"] = true;
  EXPECT_EQ(ask("turn", last), Json({{"state", "over"}, {"applied", true}}));
  EXPECT_THROW(ask("beat", call_of(one)), RendezvousError);
  // Its pass counts, and the other one gets all that is left.
  for (std::int64_t turn = 1; turn <= 2; ++turn) {
    const Json reply = ask("turn", report_of(other, turn));
    const Assignment next = messages::assignment_of(messages::value<Json>(reply, "samples"));
    EXPECT_EQ(next.step, 2);
    EXPECT_EQ(next.samples, (IndexRange{6 + 6 * turn, 6}));
  }
  EXPECT_EQ(messages::value<std::string>(ask("turn", report_of(other, 3)), "state"), "over");
  for (int step = 1; step <= 2; ++step) EXPECT_EQ(service_->wait_for_step().valid, 12);
}

// The connection may break after it was answered.
TEST_F(CoordinatorServer, AnswersAReportThatIsRepeated) {
  const int one = join(0), other = join(1);
  for (const int worker : {one, other}) ask("turn", call_of(worker));
  const Json reply = ask("turn", report_of(one, 1));
  EXPECT_EQ(messages::value<std::string>(reply, "state"), "samples");
  EXPECT_EQ(ask("turn", report_of(one, 1)), reply);
}

// It has pushed, and dies before it reports: the server has kept the report.
TEST_F(CoordinatorServer, CountsWhatALostWorkerHasPushed) {
  // A lease of a moment, and workers that are silent for longer.
  CoordinatorServiceOptions options;
  options.run = "run";
  options.coordinator.workers = 1;
  options.coordinator.last_step = 1;
  options.coordinator.global_batch_size = 12;
  options.coordinator.staleness = std::nullopt;
  options.coordinator.lease = Seconds(0.05);
  CoordinatorService service(std::move(options), *shards_);
  const auto ask_it = [&](const char* method, const Json& header) {
    RpcRequest request;
    request.method = method;
    request.header = header.dump();
    return messages::parse(service.answer(request).header, method);
  };
  const int worker = messages::value<int>(
      ask_it("join", {{"version", ""}, {"recipe", ""}, {"place", 0}}), "worker");
  ask_it("turn", call_of(worker));
  Json push = push_header(worker, 1);
  push["report"] =
      messages::json_of(WorkerReport{.loss = 5, .weight = 6, .valid = 7, .norm = 2}).dump();
  RpcClient client(shard_->address());
  static_cast<void>(client.call("push", message_of(push, at::ones({3}, at::kDouble)), soon()));
  const RemoteStep step = service.wait_for_step();
  EXPECT_EQ(step.loss, 5);
  EXPECT_EQ(step.weight, 6);
  EXPECT_EQ(step.valid, 7);
  EXPECT_EQ(step.norm, 2);
  EXPECT_EQ(step.updates, 1);
  EXPECT_EQ(step.workers, 0);
}

}  // namespace
}  // namespace troika::test
