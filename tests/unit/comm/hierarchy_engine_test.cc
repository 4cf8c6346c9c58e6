// How much time the engine across hosts gives to the parts of an operation.
#include <troika/comm/hierarchical/engine.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/failure_timing.h>
#include <troika/rendezvous/store.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

namespace troika::detail {
namespace {

// Does nothing, and knows the last deadline that it was given.
class PartEngine final : public GroupEngine {
 public:
  std::optional<Deadline> given;

  [[nodiscard]] std::string_view name() const override { return "part"; }
  Work all_reduce(const at::Tensor&, ReduceOp, const Call& call) override { return take(call); }
  Work reduce_scatter(const at::Tensor&, const at::Tensor&, std::span<const std::int64_t>, ReduceOp,
                      const Call& call) override {
    return take(call);
  }
  Work all_gather(const at::Tensor&, const at::Tensor&, std::span<const std::int64_t>,
                  const Call& call) override {
    return take(call);
  }
  Work all_to_all(const at::Tensor&, std::span<const std::int64_t>, const at::Tensor&,
                  std::span<const std::int64_t>, const Call& call) override {
    return take(call);
  }
  Work broadcast(const at::Tensor&, int, const Call& call) override { return take(call); }
  Work gather(const at::Tensor&, const at::Tensor&, int, const Call& call) override {
    return take(call);
  }
  Work scatter(const at::Tensor&, const at::Tensor&, int, const Call& call) override {
    return take(call);
  }
  Work exchange(std::span<const Transfer>, const Call& call) override { return take(call); }
  Work barrier(const Call& call) override { return take(call); }
  void abort(const std::string&) override {}

 private:
  Work take(const Call& call) {
    given = call.deadline;
    return {};
  }
};

// What goes on inside a host and between hosts at once: a rank of the own host that does not come
// is named before one of another host, which may only be slow.
TEST(HierarchyEngine, GivesWhatGoesBetweenHostsMoreTime) {
  const auto inside = std::make_shared<PartEngine>(), all = std::make_shared<PartEngine>();
  const std::array<int, 4> hosts = {0, 1, 0, 1};
  const auto engine = std::make_shared<HierarchyEngine>(
      "parts", Members{.axis = "data", .ranks = {0, 1, 2, 3}, .hosts = {"a", "b", "a", "b"}},
      Hosts(hosts), HierarchyEngine::SubEngines{nullptr, inside, nullptr, all},
      AbortStore(Store::host(0, Reach::kThisHost), 0));
  const Call call{"tokens", Deadline::in(Seconds(30))};
  const at::Tensor input = at::ones({4}), output = at::zeros({4}), one = at::ones({1});
  const std::vector<std::int64_t> counts(4, 1);
  const auto expect_more_time = [&](const char* operation) {
    ASSERT_TRUE(inside->given && all->given) << operation;
    const Seconds more = all->given->at() - inside->given->at();
    EXPECT_GT(more, 0.9 * failure_timing::kHostStep) << operation;
    inside->given = all->given = std::nullopt;
  };
  engine->all_to_all(output, counts, input, counts, call).wait();
  expect_more_time("all_to_all");
  engine->gather(output, one, 0, call).wait();
  expect_more_time("gather");
  engine->scatter(one, input, 0, call).wait();
  expect_more_time("scatter");
  const std::vector<Transfer> transfers = {{Transfer::Direction::kSend, 2, one},
                                           {Transfer::Direction::kSend, 1, one}};
  engine->exchange(transfers, call).wait();
  expect_more_time("exchange");
}

}  // namespace
}  // namespace troika::detail
