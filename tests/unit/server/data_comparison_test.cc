// Workers that have other data than their job: who finds out, who is told, and what becomes of the
// job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/compared_words.h>
#include <troika/base/error.h>
#include <troika/observe/log.h>
#include <troika/server/coordinator_service.h>
#include <troika/server/data_comparison.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troika::test {
namespace {

using messages::Json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kFromOutside = std::numeric_limits<int>::max();

std::shared_ptr<ComparedWords> data_of(const std::string& name, std::string files,
                                       std::optional<std::string> contents, std::string place) {
  return std::make_shared<ComparedWords>(name, std::move(files), std::move(contents),
                                         std::move(place));
}

struct Begun {
  std::optional<std::int64_t> staleness = 0;
  std::int64_t first_step = 1;
};

class ComparedJob : public testing::Test {
 public:
  ComparedJob() : shards_(0, {}), job_(data_of("rank 0 on host a", "files", std::nullopt, "a")) {
    LogOptions log;
    log.writer = [this](LogLevel, std::string_view line) { lines_.emplace_back(line); };
    configure_log(log);
    begin({});
  }
  ~ComparedJob() override { configure_log({}); }
  ComparedJob(const ComparedJob&) = delete;
  ComparedJob& operator=(const ComparedJob&) = delete;

 protected:
  // Starts the job of one worker.
  void begin(const Begun& begun) {
    CoordinatorServiceOptions options;
    options.run = "run";
    options.data = job_;
    options.coordinator.workers = 1;
    options.coordinator.staleness = begun.staleness;
    options.coordinator.first_step = begun.first_step;
    options.coordinator.last_step = begun.first_step + 9;
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
  WorkerData worker(const std::shared_ptr<ComparedWords>& data, std::int64_t place) {
    return {data, place, [this](std::string_view method, const std::string& header) {
              return ask(method, header);
            }};
  }
  // Returns the header of calls of the worker that has joined. `before` is the header of that
  // worker before it lost its place.
  std::string join(WorkerData& worker, std::int64_t place, const std::string& before = "") {
    Json header = {{"version", ""}, {"recipe", ""}, {"place", place}};
    if (!before.empty()) {
      const Json own = messages::parse(before, "join");
      header["before"] = own["worker"];
      header["before_run"] = own["run"];
    }
    worker.add_to_join(header);
    const Json reply = messages::parse(ask("join", header.dump()).header, "join");
    worker.check_join(reply);
    return Json({{"run", "run"}, {"worker", messages::value<int>(reply, "worker")}}).dump();
  }
  // Returns a worker that has joined and may ask at once: it does so once a second.
  WorkerData ask_again(const std::shared_ptr<ComparedWords>& data, std::int64_t place) {
    WorkerData other = worker(data, place);
    other.check_join({{"data_place", job_->identity()}});
    return other;
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
  std::shared_ptr<ComparedWords> job_;
  std::optional<CoordinatorService> service_;
  std::vector<std::string> lines_;  // of the log
};

const char* const kGuest = "a worker on host b";
const char* const kOwn = "rank 2 on host b";
const char* const kThanTheJob = " has other data than the job's rank 0 on host a: ";

TEST_F(ComparedJob, RefusesAWorkerThatJoinsAndGoesOn) {
  WorkerData guest = worker(data_of(kGuest, "others", std::nullopt, "b"), kFromOutside);
  const std::string message = std::string(kGuest) + kThanTheJob + "others is not files";
  EXPECT_EQ(refusal([&] { join(guest, kFromOutside); }), message);
  EXPECT_THAT(lines_, ElementsAre(message + "; it may not join"));
  WorkerData own = worker(data_of(kOwn, "files", std::nullopt, "b"), 0);
  EXPECT_EQ(state_of_turn(join(own, 0)), "samples");
  EXPECT_EQ(service_->doubt().certain, DataDoubt::kNever);
}

TEST_F(ComparedJob, EndsWhereAWorkerThatItNeedsHasOtherData) {
  WorkerData own = worker(data_of(kOwn, "others", std::nullopt, "b"), 0);
  const std::string message = std::string(kOwn) + kThanTheJob + "others is not files";
  EXPECT_EQ(refusal([&] { join(own, 0); }), message);
  EXPECT_EQ(end(), message);
  EXPECT_EQ(service_->doubt().certain, DataDoubt::kNever);  // it has trained nothing
}

TEST_F(ComparedJob, EndsWhereContentsOfAWorkerThatItNeedsTurnOutToDiffer) {
  const auto data = data_of(kOwn, "files", std::nullopt, "b");
  WorkerData own = worker(data, 0);
  const std::string header = join(own, 0);
  EXPECT_EQ(state_of_turn(header), "samples");
  EXPECT_EQ(service_->doubt().possible, 1);
  own.check_contents(header);  // neither side knows
  data->know("others");
  job_->know("contents");
  const std::string message = std::string(kOwn) + kThanTheJob + "others is not contents";
  EXPECT_EQ(refusal([&] { ask_again(data, 0).check_contents(header); }), message);
  EXPECT_EQ(end(), message);
  EXPECT_EQ(service_->doubt().certain, 1);
  EXPECT_EQ(service_->doubt().reason, message);
}

TEST_F(ComparedJob, GoesOnWithoutAGuestWhoseContentsTurnOutToDiffer) {
  // A worker of the job, and a guest that takes part in the third step.
  begin({.staleness = 0, .first_step = 3});
  WorkerData own = worker(data_of(kOwn, "files", std::nullopt, "a"), 0);
  const std::string own_header = join(own, 0);
  const auto data = data_of(kGuest, "files", std::nullopt, "b");
  WorkerData guest = worker(data, kFromOutside);
  const std::string header = join(guest, kFromOutside);
  EXPECT_EQ(service_->doubt().possible, DataDoubt::kNever);  // it has no samples yet
  EXPECT_EQ(state_of_turn(own_header), "samples");
  EXPECT_EQ(state_of_turn(header), "samples");
  EXPECT_EQ(service_->doubt().possible, 3);
  EXPECT_EQ(service_->doubt().certain, DataDoubt::kNever);
  data->know("others");
  job_->know("contents");
  const std::string message = std::string(kGuest) + kThanTheJob + "others is not contents";
  EXPECT_EQ(refusal([&] { ask_again(data, kFromOutside).check_contents(header); }), message);
  EXPECT_THAT(lines_, ElementsAre(message + "; the job goes on without it, and marks its "
                                            "checkpoints from step 3 on"));
  EXPECT_EQ(service_->doubt().certain, 3);
  EXPECT_EQ(service_->doubt().reason, message);
  // It is a worker no more, even where it gives another sign of life, and is not waited for.
  (void)ask("beat", header);
  EXPECT_EQ(state_of_turn(own_header), "samples");
  EXPECT_THROW((void)ask("turn", header), RendezvousError);
}

TEST_F(ComparedJob, DoubtsNothingOfAGuestWhoseContentsAreTheSame) {
  const auto data = data_of(kGuest, "files", "contents", "b");
  WorkerData guest = worker(data, kFromOutside);
  const std::string header = join(guest, kFromOutside);
  EXPECT_EQ(state_of_turn(header), "samples");
  EXPECT_EQ(service_->doubt().possible, 1);
  job_->know("contents");
  guest.check_contents(header);
  EXPECT_EQ(service_->doubt().possible, DataDoubt::kNever);
}

TEST_F(ComparedJob, SaysAtItsEndWhatHasNotBeenCompared) {
  WorkerData guest = worker(data_of(kGuest, "files", std::nullopt, "b"), kFromOutside);
  const std::string header = join(guest, kFromOutside);
  EXPECT_EQ(state_of_turn(header), "samples");
  WorkerData late = worker(data_of(kGuest, "files", std::nullopt, "c"), kFromOutside);
  (void)ask("leave", join(late, kFromOutside));  // before it has got samples
  (void)ask("leave", header);
  service_->finish();
  EXPECT_THAT(lines_, ElementsAre("the job has ended before the contents of the data of 1 worker "
                                  "had been compared with its own"));
}

// What it has pushed before it lost its place is in the parameters.
TEST_F(ComparedJob, DoubtsAGuestThatHasJoinedAgainFromItsFirstPassOn) {
  begin({.staleness = std::nullopt, .first_step = 3});
  const auto data = data_of(kGuest, "files", "others", "b");
  WorkerData guest = worker(data, kFromOutside);
  const std::string header = join(guest, kFromOutside);
  EXPECT_EQ(state_of_turn(header), "samples");
  EXPECT_EQ(service_->doubt().possible, 3);
  WorkerData again = worker(data, kFromOutside);
  const std::string later = join(again, kFromOutside, header);
  EXPECT_NE(later, header);
  EXPECT_EQ(service_->doubt().possible, 3);
  job_->know("contents");
  EXPECT_NE(refusal([&] { again.check_contents(later); }), "");
  EXPECT_EQ(service_->doubt().certain, 3);
}

TEST_F(ComparedJob, ComparesNoContentsOfTheVerySameFiles) {
  job_->know("contents");
  WorkerData same = worker(data_of(kOwn, "files", "others", "a"), 0);
  const std::string header = join(same, 0);
  same.check_contents(header);
  EXPECT_EQ(state_of_turn(header), "samples");
  EXPECT_EQ(service_->doubt().possible, DataDoubt::kNever);
}

TEST_F(ComparedJob, RefusesAWorkerThatSaysNothingOfItsData) {
  WorkerData silent = worker(nullptr, 0);
  EXPECT_THAT(refusal([&] { join(silent, 0); }), HasSubstr("lacks 'data'"));
}

}  // namespace
}  // namespace troika::test
