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

const std::vector<ShardSegment> kSegments = {{"a", 3}, {"b", 5}};

at::Tensor values(std::initializer_list<double> numbers) {
  return at::tensor(at::ArrayRef<double>(numbers.begin(), numbers.size()), at::kDouble);
}

ServerShard shard_of(const char* kind) {
  ServerShard shard(optimizer_of(kind), kSegments, at::kDouble, true);
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
  shard.store(7, 1, at::full({8}, 2.0, at::kDouble));
  shard.store(5, 1, at::full({8}, 1.0, at::kDouble));
  shard.store(6, 1, at::full({8}, 100.0, at::kDouble));
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

// Shares of a round, with workers that join and leave between pushes, against arithmetic of its
// own.
class Rounds {
 public:
  void push(std::int64_t workers, double gradient) {
    const double d = gradient / static_cast<double>(workers);
    value_ -= kRate * d;
    sum_ += d;
    share_ += 1.0 / static_cast<double>(workers);
    if (share_ < 1 - 1e-6) return;
    momentum_ = kMomentum * momentum_ + sum_;
    value_ -= kRate * kMomentum * momentum_;
    sum_ = share_ = 0;
    ++rounds_;
  }
  [[nodiscard]] double value() const { return value_; }
  [[nodiscard]] int rounds() const { return rounds_; }
  static constexpr double kRate = 0.7, kMomentum = 0.9;

 private:
  double value_ = 0, sum_ = 0, momentum_ = 0, share_ = 0;
  int rounds_ = 0;
};

ServerShard outer_shard() {
  ServerShard shard(outer_optimizer(Rounds::kRate, {Rounds::kMomentum, true}), kSegments,
                    at::kDouble, true);
  shard.write_all(at::zeros({(1 + shard.states()) * shard.size()}, at::kDouble), 0);
  return shard;
}

void push_to(ServerShard& shard, std::int64_t workers, double gradient, std::int64_t turn) {
  shard.push({.worker = 0, .turn = turn, .learning_rate = Rounds::kRate, .workers = workers},
             at::full({8}, gradient, at::kDouble));
}

TEST(ServerShard, ARoundIsAPushOfEachWorkerThatIsThere) {
  ServerShard shard = outer_shard();
  Rounds rounds;
  std::int64_t turn = 0;
  const auto push = [&](std::int64_t workers, double gradient) {
    push_to(shard, workers, gradient, ++turn);
    rounds.push(workers, gradient);
    EXPECT_NEAR(read(shard)[3].item<double>(), rounds.value(), 1e-12) << "push " << turn;
    return rounds.rounds();
  };
  EXPECT_EQ(push(1, 2), 1) << "alone";
  for (const double gradient : {1.0, -3.0}) EXPECT_EQ(push(3, gradient), 1) << "two have joined";
  EXPECT_EQ(push(3, 5), 2);
  EXPECT_EQ(push(3, 1), 2);
  EXPECT_EQ(push(2, 1), 2) << "one has left: 1/3 + 1/2";
  EXPECT_EQ(push(2, 4), 3);
  EXPECT_EQ(push(2, -1), 3);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(push(10, 0.5), 3) << "eight have joined: 1/2 + i/10";
  EXPECT_EQ(push(10, 0.5), 4);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(push(10, 7), 4);
  EXPECT_EQ(push(10, 7), 5) << "10 times 1/10 is a little below 1";
}

TEST(ServerShard, AHalfRoundGoesWithTheValues) {
  ServerShard one = outer_shard(), other = outer_shard();
  push_to(one, 2, 3, 1);
  EXPECT_EQ(one.round(), 0.5);
  const at::Tensor all = at::empty({3 * one.size()}, at::kDouble);
  one.read_all(all);
  other.write_all(all, one.version(), one.round());
  push_to(one, 2, 4, 2);
  push_to(other, 2, 4, 1);
  EXPECT_TRUE(at::equal(read(one), read(other)));
  EXPECT_EQ(other.round(), 0);
}

TEST(ServerShard, RefusesWhatIsNotItsOwn) {
  ServerShard shard = shard_of("sgd");
  EXPECT_THROW(shard.push({.worker = 1, .turn = 1}, at::ones({7}, at::kDouble)), DataError);
  EXPECT_THROW(shard.push({.worker = 1, .turn = 1}, at::ones({8}, at::kFloat)), DataError);
  shard.push({.worker = 1, .turn = 1}, at::ones({8}, at::kDouble));
  EXPECT_EQ(shard.fence(1).turn, 1);
  EXPECT_EQ(shard.fence(2).turn, 0);
  EXPECT_THROW(shard.push({.worker = 1, .turn = 2}, at::ones({8}, at::kDouble)), RendezvousError);
  EXPECT_THROW(ServerShard(optimizer_of("lamb"), kSegments, at::kDouble, false), UsageError);
}

}  // namespace
}  // namespace troika
