// Workers that have other data than their job: who finds out, who is told, and what becomes of the
// job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/server/coordinator_service.h>
#include <troika/server/data_comparison.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>

namespace troika::test {
namespace {

using messages::Json;
using testing::HasSubstr;

constexpr std::int64_t kFromOutside = std::numeric_limits<int>::max();

// Data that are one word, and contents that are another.
class Words final : public ComparedData {
 public:
  Words(std::string files, std::optional<std::string> contents, std::string place)
      : files_(std::move(files)), contents_(std::move(contents)), place_(std::move(place)) {}

  [[nodiscard]] std::string host() const override { return "host-" + place_; }
  [[nodiscard]] std::string place() const override { return place_; }
  [[nodiscard]] std::optional<std::string> summary(Of of) override {
    return of == Of::kFiles ? files_ : contents_;
  }
  [[nodiscard]] std::string excerpt(Of of, const std::string&) override { return *summary(of); }
  [[nodiscard]] std::string difference(Of of, const std::string& other,
                                       std::string_view excerpt) override {
    EXPECT_EQ(other, excerpt);
    return *summary(of) + " is not " + other;
  }
  [[nodiscard]] std::exception_ptr error(const std::string& message) const override {
    return std::make_exception_ptr(DataError(message));
  }
  void know(const std::string& contents) { contents_ = contents; }

 private:
  std::string files_;
  std::optional<std::string> contents_;
  std::string place_;
};

class ComparedJob : public testing::Test {
 protected:
  ComparedJob() : shards_(0, {}), job_(std::make_shared<Words>("files", std::nullopt, "a")) {
    CoordinatorServiceOptions options;
    options.run = "run";
    options.data = job_;
    options.coordinator.workers = 1;
    options.coordinator.last_step = 1;
    options.coordinator.global_batch_size = 4;
    service_.emplace(std::move(options), shards_);
  }
  RpcReply ask(std::string_view method, const std::string& header) {
    RpcRequest request;
    request.method = method;
    request.header = header;
    const RpcMessage answer = service_->answer(request);
    auto body = std::make_shared<std::string>();
    for (const auto part : answer.body) {
      body->append(reinterpret_cast<const char*>(part.data()), part.size());
    }
    return {answer.header, std::as_bytes(std::span(*body)), body};
  }
  WorkerData worker(const std::shared_ptr<Words>& data, std::int64_t place) {
    return {data, place, [this](std::string_view method, const std::string& header) {
              return ask(method, header);
            }};
  }
  // Returns the header of calls of the worker that has joined.
  std::string join(WorkerData& worker, std::int64_t place) {
    Json header = {{"version", ""}, {"recipe", ""}, {"place", place}};
    worker.add_to_join(header);
    const Json reply = messages::parse(ask("join", header.dump()).header, "join");
    worker.check_join(reply);
    return Json({{"run", "run"}, {"worker", messages::value<int>(reply, "worker")}}).dump();
  }
  // Returns what the job answers a worker that has joined and asks for samples.
  std::string state_of_turn(const std::string& header) {
    return messages::value<std::string>(messages::parse(ask("turn", header).header, "turn"),
                                        "state");
  }
  // Returns what ends the job.
  std::string end() {
    try {
      (void)service_->wait_for_step();
    } catch (const Error& error) {
      return error.what();
    }
    return "a step is complete";
  }
  template <class Body>
  static std::string refusal(const Body& body) {
    try {
      body();
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

  ShardClients shards_;
  std::shared_ptr<Words> job_;
  std::optional<CoordinatorService> service_;
};

const char* const kOtherFiles =
    "a worker on host host-b has other data than the job on host host-a: others is not files";

TEST_F(ComparedJob, RefusesAWorkerThatJoinsAndGoesOn) {
  WorkerData guest = worker(std::make_shared<Words>("others", std::nullopt, "b"), kFromOutside);
  EXPECT_EQ(refusal([&] { join(guest, kFromOutside); }), kOtherFiles);
  WorkerData own = worker(std::make_shared<Words>("files", std::nullopt, "b"), 0);
  EXPECT_EQ(state_of_turn(join(own, 0)), "samples");
}

TEST_F(ComparedJob, EndsWhereAWorkerThatItNeedsHasOtherData) {
  WorkerData own = worker(std::make_shared<Words>("others", std::nullopt, "b"), 0);
  EXPECT_EQ(refusal([&] { join(own, 0); }), kOtherFiles);
  EXPECT_EQ(end(), kOtherFiles);
}

TEST_F(ComparedJob, EndsWhereContentsTurnOutToDiffer) {
  const auto data = std::make_shared<Words>("files", std::nullopt, "b");
  WorkerData guest = worker(data, kFromOutside);
  const std::string header = join(guest, kFromOutside);
  guest.check_contents(header);  // neither side knows
  data->know("others");
  job_->know("contents");
  // A later question: it asks once a second.
  WorkerData later = worker(data, kFromOutside);
  const std::string again = join(later, kFromOutside);
  const std::string message =
      "a worker on host host-b has other data than the job on host host-a: others is not contents";
  EXPECT_EQ(refusal([&] { later.check_contents(again); }), message);
  EXPECT_EQ(end(), message);
}

TEST_F(ComparedJob, ComparesNoContentsOfTheVerySameFiles) {
  job_->know("contents");
  WorkerData same = worker(std::make_shared<Words>("files", "others", "a"), 0);
  const std::string header = join(same, 0);
  same.check_contents(header);
  WorkerData equal = worker(std::make_shared<Words>("files", "contents", "b"), kFromOutside);
  equal.check_contents(join(equal, kFromOutside));
  EXPECT_EQ(state_of_turn(header), "samples");
}

TEST_F(ComparedJob, RefusesAWorkerThatSaysNothingOfItsData) {
  WorkerData silent = worker(nullptr, 0);
  EXPECT_THAT(refusal([&] { join(silent, 0); }), HasSubstr("lacks 'data'"));
}

}  // namespace
}  // namespace troika::test
