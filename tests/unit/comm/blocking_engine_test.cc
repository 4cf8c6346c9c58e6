// What engines have in common, on one whose bodies are the test's: order of the queue, deadlines,
// and the failure that stays.
#include <troika/comm/blocking_engine.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>

#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Seconds kAmpleTime{30};

// The engine's own exception.
struct PeerIsGone : std::exception {};

class ScriptedEngine final : public BlockingEngine {
 public:
  ScriptedEngine()
      : BlockingEngine({.name = "scripted",
                        .members = {.axis = "data", .ranks = {4, 7}, .hosts = {"a", "b"}}}) {}
  ~ScriptedEngine() override { stop(); }

  // A collective whose body is `script`.
  Work start(const std::string& label, std::function<void(const OperationContext&)> script,
             Seconds timeout = kAmpleTime) {
    return collective("all_reduce", {label, Deadline::in(timeout)}, std::move(script));
  }
  Work exchange(std::span<const Transfer>, const Call&) override { return {}; }
  using EngineBase::has_failed;
  using EngineBase::late;

  std::vector<std::string> broken;  // what break_connections() was told
  int waits_for_writers = 0;
  std::vector<std::string> bodies;  // in the order in which they ran

 private:
  void ran(const OperationContext& context) { bodies.emplace_back(context.operation); }
  void run_all_reduce(const at::Tensor&, ReduceOp, const OperationContext& context) override {
    ran(context);
  }
  void run_reduce_scatter(const at::Tensor&, const at::Tensor&, Counts, ReduceOp,
                          const OperationContext& context) override {
    ran(context);
  }
  void run_all_gather(const at::Tensor&, const at::Tensor&, Counts,
                      const OperationContext& context) override {
    ran(context);
  }
  void run_all_to_all(const at::Tensor&, Counts, const at::Tensor&, Counts,
                      const OperationContext& context) override {
    ran(context);
  }
  void run_broadcast(const at::Tensor&, int, const OperationContext& context) override {
    ran(context);
  }
  void run_gather(const at::Tensor&, const at::Tensor&, int,
                  const OperationContext& context) override {
    ran(context);
  }
  void run_scatter(const at::Tensor&, const at::Tensor&, int,
                   const OperationContext& context) override {
    ran(context);
  }
  void run_barrier(const OperationContext& context) override { ran(context); }

  void translate(const OperationContext& context) override {
    try {
      throw;
    } catch (const PeerIsGone&) {
      throw failed_with(context, describe_loss(1, std::nullopt), kHasEnded);
    } catch (const std::exception&) {  // the base's. NOLINT(bugprone-empty-catch)
    }
  }
  void break_connections(const Failure& reason) override {
    broken.push_back(reason.message + "\n" + reason.hint);
  }
  void await_writers() override { ++waits_for_writers; }
};

template <class Expected>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type: ") + error.what();
  }
  return "nothing";
}

TEST(BlockingEngine, RunsEachBodyInTheOrderOfTheCalls) {
  const at::Tensor tensor = at::zeros({2});
  const std::vector<std::int64_t> counts = {1, 1};
  ScriptedEngine engine;
  std::vector<Work> works;
  {
    const Call call{"label", Deadline::in(kAmpleTime)};
    GroupEngine& group = engine;
    works = {group.barrier(call),
             group.all_reduce(tensor, ReduceOp::kSum, call),
             group.reduce_scatter(tensor, tensor, counts, ReduceOp::kSum, call),
             group.all_gather(tensor, tensor, counts, call),
             group.all_to_all(tensor, counts, tensor, counts, call),
             group.broadcast(tensor, 0, call),
             group.gather(tensor, tensor, 0, call),
             group.scatter(tensor, tensor, 0, call)};
  }
  for (const Work& work : works) work.wait();
  EXPECT_THAT(engine.bodies, ElementsAre("barrier", "all_reduce", "reduce_scatter", "all_gather",
                                         "all_to_all", "broadcast", "gather", "scatter"));
  EXPECT_FALSE(engine.has_failed());
}

TEST(BlockingEngine, KeepsTheFirstFailure) {
  ScriptedEngine engine;
  engine.abort("the loss is not finite\nlower it");
  engine.abort("something else");
  EXPECT_THAT(engine.broken, ElementsAre("the loss is not finite\nlower it"));
  EXPECT_EQ(engine.waits_for_writers, 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(message_of<PeerError>([&] { (void)engine.start("loss", [](auto&) {}); }),
              "all_reduce 'loss' on axis data: the loss is not finite");
  }
}

TEST(BlockingEngine, FailsWhatIsQueuedBehindAFailure) {
  ScriptedEngine engine;
  std::promise<void> release;
  const Work first = engine.start("first", [ready = release.get_future().share()](auto&) {
    ready.wait();
    throw std::runtime_error("no luck");
  });
  bool ran = false;
  const Work second = engine.start("second", [&](auto&) { ran = true; });
  release.set_value();
  EXPECT_EQ(message_of<std::runtime_error>([&] { first.wait(); }), "no luck");
  EXPECT_EQ(message_of<PeerError>([&] { second.wait(); }),
            "all_reduce 'second' on axis data: all_reduce 'first' failed: no luck");
  EXPECT_FALSE(ran);
}

TEST(BlockingEngine, TellsPeersOfATypedErrorWithItsHint) {
  ScriptedEngine engine;
  const Work work =
      engine.start("loss", [](auto&) { throw StorageError("no memory", "free some"); });
  EXPECT_EQ(message_of<StorageError>([&] { work.wait(); }), "no memory");
  EXPECT_THAT(engine.broken, ElementsAre("all_reduce 'loss' on axis data: no memory\nfree some"));
}

TEST(BlockingEngine, TranslatesTheEnginesOwnErrors) {
  ScriptedEngine engine;
  const Work work = engine.start("loss", [](auto&) { throw PeerIsGone(); });
  EXPECT_EQ(message_of<PeerError>([&] { work.wait(); }),
            "all_reduce 'loss' on axis data: lost rank 7 (host b)");
  EXPECT_TRUE(engine.has_failed());
}

TEST(BlockingEngine, NamesWhomALateOperationWaitsFor) {
  ScriptedEngine engine;
  const Work work = engine.start(
      "loss",
      [&](const OperationContext& context) {
        std::rethrow_exception(engine.late(context, {0, 1}));  // 0 is this member
      },
      Seconds(0.25));
  EXPECT_THAT(message_of<DeadlineError>([&] { work.wait(); }),
              AllOf(HasSubstr("nothing from rank 7 (host b) in all_reduce 'loss' on axis data"),
                    HasSubstr("rank 4 has waited")));
  EXPECT_THAT(engine.broken, ElementsAre(HasSubstr("nothing from rank 7")));
}

TEST(BlockingEngine, FailsAtADeadlineThatPassesInTheQueue) {
  ScriptedEngine engine;
  std::promise<void> started, release;
  const Work first = engine.start("first", [&, ready = release.get_future().share()](auto&) {
    started.set_value();
    ready.wait();
  });
  started.get_future().wait();
  const Work second = engine.start(
      "second", [](auto&) {}, Seconds(0.05));
  EXPECT_THAT(message_of<DeadlineError>([&] { second.wait(); }),
              HasSubstr("all_reduce 'second' on axis data: an earlier operation took more than"));
  EXPECT_TRUE(engine.has_failed());
  release.set_value();
  first.wait();  // it was under way, and ended well
}

}  // namespace
}  // namespace troika
