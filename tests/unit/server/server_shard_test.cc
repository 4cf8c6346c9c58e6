#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/server/server_shard.h>

#include <vector>

namespace troika {
namespace {

OptimizerOptions optimizer_of(const char* kind) {
  OptimizerOptions options;
  options.kind = Chosen<OptimizerKind>::named(kind);
  options.weight_decay = 0;
  return options;
}

const std::vector<ShardPiece> kPieces = {{"a", 3}, {"b", 5}};

at::Tensor values(std::initializer_list<double> numbers) {
  return at::tensor(at::ArrayRef<double>(numbers.begin(), numbers.size()), at::kDouble);
}

ServerShard shard_of(const char* kind) {
  ServerShard shard(optimizer_of(kind), kPieces, at::kDouble, true);
  shard.write_all(at::zeros({(1 + shard.states()) * shard.size()}, at::kDouble), 0);
  return shard;
}

at::Tensor read(const ServerShard& shard) {
  const at::Tensor all = at::empty({shard.size()}, at::kDouble);
  shard.read(all);
  return all;
}

TEST(ServerShard, AppliesAnUpdateOnce) {
  ServerShard shard = shard_of("sgd");
  const at::Tensor gradient = values({1, 2, 3, 4, 5, 6, 7, 8});
  const PushedUpdate update{.worker = 3, .turn = 1, .version = 0, .learning_rate = 0.5, .scale = 2};
  EXPECT_FALSE(shard.push(update, gradient).repeated);
  EXPECT_TRUE(at::equal(read(shard), -gradient));
  const auto again = shard.push(update, gradient);
  EXPECT_TRUE(again.repeated);
  EXPECT_EQ(again.version, 1);
  EXPECT_TRUE(at::equal(read(shard), -gradient));
}

TEST(ServerShard, MeasuresStalenessAndDividesTheRateByIt) {
  ServerShard shard = shard_of("sgd");
  const at::Tensor gradient = at::ones({8}, at::kDouble);
  for (int worker = 0; worker < 4; ++worker) {
    const auto pushed = shard.push({.worker = worker,
                                    .turn = 1,
                                    .version = 0,
                                    .learning_rate = 1,
                                    .divided_by_staleness = true},
                                   gradient);
    EXPECT_EQ(pushed.staleness, worker);
  }
  // 1 + 1 + 1/2 + 1/3
  EXPECT_NEAR(read(shard)[0].item<double>(), -(1 + 1 + 0.5 + 1.0 / 3), 1e-15);
}

TEST(ServerShard, SumsWhatItsWorkersHaveLeft) {
  ServerShard shard = shard_of("sgd");
  shard.keep(7, 1, at::full({8}, 2.0, at::kDouble));
  shard.keep(5, 1, at::full({8}, 1.0, at::kDouble));
  shard.keep(6, 1, at::full({8}, 100.0, at::kDouble));
  EXPECT_EQ(shard.sum(1, std::vector{5, 8}).missing, std::vector{8});
  const auto sum = shard.sum(1, std::vector{5, 7});
  EXPECT_TRUE(sum.missing.empty());
  EXPECT_EQ(sum.squares, 8 * 9);
  EXPECT_EQ(shard.apply(1, 1, 0.5), 1);
  EXPECT_EQ(shard.apply(1, 1, 0.5), 1) << "repeated";
  EXPECT_TRUE(at::equal(read(shard), at::full({8}, -1.5, at::kDouble)));
  EXPECT_FALSE(shard.apply(2, 1, 1)) << "it has no gradients of that step";
  EXPECT_EQ(shard.sum(1, std::vector{5, 7}).squares, 8 * 9) << "of the step that is applied";
}

// The state goes with the values: a copy takes the same next step.
TEST(ServerShard, IsReadAndWrittenWhole) {
  ServerShard one = shard_of("adamw"), other = shard_of("adamw");
  EXPECT_EQ(one.states(), 2);
  const auto step = [](ServerShard& shard, double value, std::int64_t turn) {
    shard.push({.worker = 0, .turn = turn, .version = turn - 1, .learning_rate = 0.1},
               at::full({8}, value, at::kDouble));
  };
  step(one, 1, 1);
  const at::Tensor all = at::empty({3 * one.size()}, at::kDouble);
  one.read_all(all);
  other.write_all(all, one.version());
  other.set_applied(one.applied());
  step(one, -3, 2);
  step(other, -3, 1);  // repeated
  EXPECT_FALSE(at::equal(read(one), read(other)));
  step(other, -3, 2);
  EXPECT_TRUE(at::equal(read(one), read(other)));
}

TEST(ServerShard, RefusesWhatIsNotItsOwn) {
  ServerShard shard = shard_of("sgd");
  EXPECT_THROW(shard.push({.worker = 1, .turn = 1}, at::ones({7}, at::kDouble)), DataError);
  EXPECT_THROW(shard.push({.worker = 1, .turn = 1}, at::ones({8}, at::kFloat)), DataError);
  shard.push({.worker = 1, .turn = 1}, at::ones({8}, at::kDouble));
  EXPECT_EQ(shard.fence(1).turn, 1);
  EXPECT_EQ(shard.fence(2).turn, 0);
  EXPECT_THROW(shard.push({.worker = 1, .turn = 2}, at::ones({8}, at::kDouble)), RendezvousError);
  EXPECT_THROW(ServerShard(optimizer_of("lamb"), kPieces, at::kDouble, false), UsageError);
}

}  // namespace
}  // namespace troika
