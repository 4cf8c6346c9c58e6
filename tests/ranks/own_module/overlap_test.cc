// Buckets of gradients are reduced while the backward pass goes on: how large they are, when they
// start and end, and in which order, as the flight recorder has it.
#include <span>
#include <thread>

#include "ranks/own_module/recorded.h"

namespace troika::test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Layers of 1 MiB each.
struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(int layers) {
    for (int i = 0; i < layers; ++i) {
      const auto options = torch::nn::LinearOptions(512, 512).bias(false);
      all.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(options)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : all) x = layer(x);
    return x;
  }
  std::vector<torch::nn::Linear> all;
};
TORCH_MODULE(Deep);

// As docs/own-module.md has it: 1 MiB, then 16 MiB each. The last one has what ranks tell each
// other, too.
RANK_TEST(OwnModuleOverlap, TheFirstBucketIsSmall, 2) {
  const RecordedSession recorded(rank);
  Deep module(20);
  DataParallel model(module, recorded.session());
  model(torch::ones({1, 512})).sum().backward();
  const auto buckets = recorded.buckets();
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(model.buckets(), 3);
  EXPECT_EQ(buckets[0].bytes, 1 * kMiB);
  EXPECT_EQ(buckets[1].bytes, 16 * kMiB);
  EXPECT_EQ(buckets[2].bytes, 3 * kMiB + 64);
}

// A backward pass that takes its time: it does not come to the first layer before the first bucket,
// which has the last one's gradient, has been averaged, on every rank.
RANK_FUNCTION(averages_during_the_backward_pass) {
  const RecordedSession recorded(rank);
  Deep module(3);
  DataParallel model(module, recorded.session());
  for (std::size_t pass = 0; pass < 3; ++pass) {
    const torch::Tensor input = torch::full({1, 512}, rank.index() + 1.0);
    const torch::Tensor hidden = module->all[0](input);
    const std::size_t first = recorded.buckets().size();
    hidden.register_hook([&](const torch::Tensor&) {
      EXPECT_TRUE(recorded.ends(first)) << "in pass " << pass;
      const auto buckets = recorded.buckets();
      ASSERT_EQ(buckets.size(), first + 1) << "in pass " << pass;
      EXPECT_EQ(buckets[first].label, "gradient bucket 1");
      EXPECT_EQ(buckets[first].bytes, 1 * kMiB);
    });
    module->zero_grad();
    module->all[2](module->all[1](hidden)).sum().backward();
    const auto buckets = recorded.buckets();
    ASSERT_EQ(buckets.size(), first + 2);
    EXPECT_LE(buckets[first].finished, buckets[first + 1].started) << "in pass " << pass;
  }
}

class OverlapOnEngine : public testing::TestWithParam<std::string> {};
TEST_P(OverlapOnEngine, BucketsAreAveragedDuringTheBackwardPass) {
  expect_ranks("averages_during_the_backward_pass", 2, {.engine = GetParam()});
}
INSTANTIATE_TEST_SUITE_P(Engines, OverlapOnEngine, testing::ValuesIn(usable_engines()),
                         engine_name);

// Two layers of other sizes, each of which may be the last one that a forward pass uses.
struct EitherImpl : torch::nn::Module {
  EitherImpl() {
    torch::manual_seed(1);
    narrow = register_module("narrow", linear(6, 3));
    wide = register_module("wide", torch::nn::Sequential(linear(6, 9), linear(9, 3)));
    to(torch::kDouble);
  }
  static torch::nn::Linear linear(int inputs, int outputs) {
    return torch::nn::Linear(torch::nn::LinearOptions(inputs, outputs).bias(false));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor a, b;
    if (narrow_last) b = wide->forward(x);
    a = narrow(x);
    if (!narrow_last) b = wide->forward(x);
    return a * b;
  }
  torch::nn::Linear narrow{nullptr};
  torch::nn::Sequential wide{nullptr};
  bool narrow_last = false;
};
TORCH_MODULE(Either);

std::vector<std::int64_t> elements_of(std::span<const RecordedOperation> buckets) {
  std::vector<std::int64_t> elements;
  for (const RecordedOperation& each : buckets) elements.push_back(each.elements);
  return elements;
}

// The first pass takes parameters for used in the order in which they were registered. Ranks that
// have seen other orders follow rank 0; gradients are those of one process all the same.
RANK_TEST(OwnModuleOverlap, BucketsFollowTheOrderThatRankZeroHasSeen, 2, 3) {
  const RecordedSession recorded(rank);
  DataParallelOptions options;
  options.buckets = {.first_bytes = 1, .bytes = 1};  // a bucket for each parameter
  Either module, alone;
  module->narrow_last = rank.index() == 0;  // its gradient comes first there, and last elsewhere
  DataParallel model(module, recorded.session(), options);
  const Samples all(6), own = all.slice(rank);
  squared_error(alone(all.x), all.y).backward();
  for (int step = 0; step < 3; ++step) {
    module->zero_grad();
    squared_error(model(own.x), own.y).backward();
    expect_same_gradients(*module, *alone);
  }
  const auto buckets = recorded.buckets();
  ASSERT_EQ(buckets.size(), 9u);
  // In doubles, to 64 bytes; the last one in its turn has what ranks tell each other.
  const std::vector<std::int64_t> guessed = {32, 56, 24 + 8}, seen = {24, 32, 56 + 8};
  const std::span<const RecordedOperation> passes = buckets;
  EXPECT_EQ(elements_of(passes.first(3)), guessed);
  EXPECT_EQ(elements_of(passes.subspan(3, 3)), seen);
  EXPECT_EQ(elements_of(passes.last(3)), seen);
}

}  // namespace
}  // namespace troika::test
