// DataParallel gives the gradients of a single process that has the batches of all ranks.
#include <map>

#include "ranks/own_module/recorded.h"

namespace troika::test {
namespace {

// Several steps of SGD with momentum, against one process.
template <class Module>
void expect_same_training(Rank& rank, Module module, Module alone,
                          const DataParallelOptions& options, at::IntArrayRef shape = {6}) {
  DataParallel model(module, session_of(rank), options);
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD optimizer(module->parameters(), sgd), reference(alone->parameters(), sgd);
  for (std::uint64_t step = 0; step < 4; ++step) {
    const Samples all(12, step, shape), own = all.slice(rank);
    optimizer.zero_grad();
    squared_error(model(own.x), own.y).backward();
    reference.zero_grad();
    squared_error(alone->forward(all.x), all.y).backward();
    expect_same_gradients(*module, *alone);
    optimizer.step();
    reference.step();
  }
  expect_same_values(*module, *alone);
}

RANK_TEST(OwnModule, TrainsAsOneProcess, 1, 2, 3) {
  expect_same_training(rank, Mlp(), Mlp(), {});
}

RANK_TEST(OwnModule, TrainsAsOneProcessInManyBuckets, 2, 3) {
  Mlp module;
  const DataParallel model(module, session_of(rank), small_buckets());
  EXPECT_GE(model.buckets(), 3);
  expect_same_training(rank, Mlp(), Mlp(), small_buckets());
}

// What other tests hold ranks of one host to, on every engine, across hosts and over MPI, too.
class OwnModuleOnEngine : public testing::TestWithParam<TestedEngine> {
 protected:
  static void expect(const std::string& test) {
    const std::vector<int>& sizes = GetParam().sizes;
    expect_ranks(test, sizes.empty() ? 3 : sizes.front(), GetParam().options);
  }
};
TEST_P(OwnModuleOnEngine, TrainsAsOneProcess) {
  expect("OwnModule.TrainsAsOneProcessInManyBuckets");
}
TEST_P(OwnModuleOnEngine, Joins) {
  expect("OwnModuleUneven.JoinsWithTheOptimisersStep");
}
TEST_P(OwnModuleOnEngine, HasOneBatchNorm) {
  expect("SyncBatchNorm.WeighedIsOneBatch");
}
TEST_P(OwnModuleOnEngine, CutsOptimiserStateAndGradients) {
  expect("OwnModuleZero.UpdatesGroupsWithTheirOptions");
}
INSTANTIATE_TEST_SUITE_P(Engines, OwnModuleOnEngine, testing::ValuesIn(tested_engines()),
                         [](const auto& info) { return info.param.name; });

// Used in another order than registered.
struct ShuffledImpl : torch::nn::Module {
  ShuffledImpl() {
    torch::manual_seed(1);
    last = register_module("last", torch::nn::Linear(6, 3));
    first = register_module("first", torch::nn::Linear(6, 6));
    middle = register_module("middle", torch::nn::Linear(6, 6));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::tanh(middle(torch::tanh(first(x)))));
  }
  torch::nn::Linear last{nullptr}, first{nullptr}, middle{nullptr};
};
TORCH_MODULE(Shuffled);

RANK_TEST(OwnModule, OrdersBucketsAsGradientsBecomeReady, 2) {
  Shuffled module;
  DataParallelOptions options;
  options.buckets = {.first_bytes = 1, .bytes = 1};  // a bucket for each parameter
  DataParallel model(module, session_of(rank), options);
  const Samples own = Samples(6).slice(rank);
  for (int step = 0; step < 2; ++step) {
    module->zero_grad();
    squared_error(model(own.x), own.y).backward();
  }
  const auto address = [](const torch::Tensor& parameter) {
    return parameter.grad().const_data_ptr<double>();
  };
  EXPECT_LT(address(module->last->weight), address(module->middle->weight));
  EXPECT_LT(address(module->middle->weight), address(module->first->weight));
  expect_same_training(rank, Shuffled(), Shuffled(), options);
}

RANK_TEST(OwnModule, GradientsAreViewsOfOneArena, 2) {
  Mlp module;
  DataParallel model(module, session_of(rank));
  torch::optim::SGD optimizer(module->parameters(), 0.1);
  const Samples own = Samples(6).slice(rank);
  std::vector<const void*> before;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    squared_error(model(own.x), own.y).backward();
    std::vector<const void*> now;
    for (const auto& parameter : module->parameters()) {
      now.push_back(parameter.grad().const_data_ptr());
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(now.back()) % 64, 0);
    }
    if (step > 0) {
      EXPECT_EQ(now, before);
    }
    before = now;
    optimizer.step();
  }
  const auto [low, high] = std::minmax_element(before.begin(), before.end());
  EXPECT_LT(static_cast<const char*>(*high) - static_cast<const char*>(*low), 2000);
}

// Peers read the arena: a large bucket takes 2 steps, and ordinary memory 2 a window
// (docs/engines.md).
RANK_FUNCTION(reduces_buckets_in_place) {
  const RecordedSession recorded(rank);
  const torch::nn::Linear module(512, 512);
  DataParallel model(module, recorded.session());
  model(torch::ones({2, 512})).sum().backward();
  const std::int64_t elements = 512 * 512;
  const torch::Tensor ordinary = torch::ones({elements});
  recorded.session()
      .world()
      .all_reduce(ordinary, ReduceOp::kSum, Rank::call("ordinary memory"))
      .wait();

  std::map<std::string, std::uint32_t> steps;
  for (const RecordedOperation& one : recorded.operations()) {
    if (one.elements >= elements) steps[one.operation + " " + one.label] = one.steps;
  }
  EXPECT_EQ(steps.at("all_reduce gradient bucket 1"), 2u);
  EXPECT_GT(steps.at("all_reduce ordinary memory"), 2u);
}

TEST(OwnModule, ReducesLargeBucketsInMemoryForAll) {
  expect_ranks("reduces_buckets_in_place", 2, {.engine = "shm"});
}

RANK_TEST(OwnModule, SameBitsInAnyBuckets, 3) {
  Mlp one, many;
  DataParallel whole(one, session_of(rank)), cut(many, session_of(rank), small_buckets());
  const Samples own = Samples(6).slice(rank);
  for (int step = 0; step < 2; ++step) {
    one->zero_grad();
    many->zero_grad();
    squared_error(whole(own.x), own.y).backward();
    squared_error(cut(own.x), own.y).backward();
    for (std::size_t i = 0; i < one->parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(one->parameters()[i].grad(), many->parameters()[i].grad()));
    }
  }
}

struct WithBufferImpl : MlpImpl {
  explicit WithBufferImpl(std::uint64_t seed) : MlpImpl(seed) {
    register_buffer("steps", torch::full({2}, static_cast<std::int64_t>(seed), torch::kLong));
    register_buffer("mask", torch::full({3}, seed == 0, torch::kBool));
    register_parameter("turned", doubles({4, 3}, seed).t());
  }
};
TORCH_MODULE(WithBuffer);

RANK_TEST(OwnModule, StartsFromRankZero, 2, 3) {
  WithBuffer module(static_cast<std::uint64_t>(rank.index()));
  const DataParallel model(module, session_of(rank));
  const WithBuffer wanted(0);
  expect_same_values(*module, *wanted, 0);
  EXPECT_EQ(module->named_buffers()["steps"][1].item<std::int64_t>(), 0);
  EXPECT_TRUE(module->named_buffers()["mask"][2].item<bool>());
}

RANK_TEST(OwnModule, AccumulatesWithoutSynchronising, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  for (int round = 0; round < 2; ++round) {
    module->zero_grad();
    alone->zero_grad();
    const std::uint64_t sent_before = model.session().world().input_bytes();
    for (std::uint64_t part = 0; part < 3; ++part) {
      const Samples all(6, part), own = all.slice(rank);
      if (part < 2) {
        const auto guard = model.no_sync();
        squared_error(model(own.x), own.y).backward();
        EXPECT_EQ(model.session().world().input_bytes(), sent_before);
      } else {
        squared_error(model(own.x), own.y).backward();
      }
      squared_error(alone(all.x), all.y).backward();
    }
    expect_same_gradients(*module, *alone);
  }
}

RANK_TEST(OwnModule, AccumulatesOverSynchronisingPasses, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank));
  for (std::uint64_t part = 0; part < 3; ++part) {
    const Samples all(6, part), own = all.slice(rank);
    squared_error(model(own.x), own.y).backward();
    squared_error(alone(all.x), all.y).backward();
  }
  expect_same_gradients(*module, *alone);
}

// Gradients of several rounds, against one process.
template <class Module>
void expect_same_rounds(Rank& rank, Module module, Module alone) {
  DataParallel model(module, session_of(rank), small_buckets());
  for (std::uint64_t round = 0; round < 3; ++round) {
    module->zero_grad();
    alone->zero_grad();
    const Samples all(6, round), own = all.slice(rank);
    squared_error(model(own.x), own.y).backward();
    squared_error(alone(all.x), all.y).backward();
    expect_same_gradients(*module, *alone);
  }
}

struct FrozenImpl : torch::nn::Module {
  FrozenImpl() {
    torch::manual_seed(1);
    in = register_module("in", torch::nn::Linear(6, 5));
    frozen = register_module("frozen", torch::nn::Linear(5, 4));
    out = register_module("out", torch::nn::Linear(4, 3));
    to(torch::kDouble);
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    out->bias.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(frozen(torch::tanh(in(x)))));
  }
  torch::nn::Linear in{nullptr}, frozen{nullptr}, out{nullptr};
};
TORCH_MODULE(Frozen);

RANK_TEST(OwnModule, FrozenParameters, 2, 3) {
  Frozen module;
  expect_same_rounds(rank, module, Frozen());
  EXPECT_FALSE(module->frozen->weight.grad().defined());
  EXPECT_FALSE(module->out->bias.grad().defined());
  EXPECT_TRUE(module->out->weight.grad().defined());
}

// One module under two names.
struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    torch::manual_seed(1);
    in = register_module("in", torch::nn::Linear(6, 6));
    again = register_module("again", in);
    out = register_module("out", torch::nn::Linear(6, 3));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(again(torch::tanh(in(x)))));
  }
  torch::nn::Linear in{nullptr}, again{nullptr}, out{nullptr};
};
TORCH_MODULE(Shared);

RANK_TEST(OwnModule, SharedModule, 2, 3) {
  Shared module;
  expect_same_rounds(rank, module, Shared());
  EXPECT_TRUE(module->in->weight.is_same(module->again->weight));
}

// One parameter under two names, as the weight of an embedding and of what undoes it.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    torch::manual_seed(1);
    in = register_module("in", torch::nn::Linear(6, 5));
    out = register_module("out", torch::nn::Linear(6, 3));
    to(torch::kDouble);
    tied = register_parameter("tied", in->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(torch::linear(torch::tanh(in(x)), tied.t())));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::Tensor tied;
};
TORCH_MODULE(Tied);

RANK_TEST(OwnModule, TiedWeights, 2, 3) {
  Tied module;
  expect_same_rounds(rank, module, Tied());
  EXPECT_TRUE(module->tied.is_same(module->in->weight));
}

struct TwiceImpl : torch::nn::Module {
  TwiceImpl() {
    torch::manual_seed(1);
    middle = register_module("middle", torch::nn::Linear(6, 6));
    out = register_module("out", torch::nn::Linear(6, 3));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(middle(torch::tanh(middle(x)))));
  }
  torch::nn::Linear middle{nullptr}, out{nullptr};
};
TORCH_MODULE(Twice);

RANK_TEST(OwnModule, ModuleUsedTwiceInAStep, 2, 3) {
  expect_same_rounds(rank, Twice(), Twice());
}

// The whole model, in one backward pass and in two.
RANK_TEST(OwnModule, CalledTwiceInAStep, 2) {
  for (const bool at_once : {true, false}) {
    Mlp module, alone;
    DataParallel model(module, session_of(rank), small_buckets());
    const auto train = [&](auto& net, const Samples& some, const Samples& more) {
      const torch::Tensor first = squared_error(net.forward(some.x), some.y);
      const torch::Tensor second = squared_error(net.forward(more.x), more.y);
      if (at_once) return (first + second).backward();
      first.backward();
      second.backward();
    };
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Samples some(6, step), more(6, 10 + step);
      module->zero_grad();
      alone->zero_grad();
      train(model, some.slice(rank), more.slice(rank));
      train(*alone, some, more);
      expect_same_gradients(*module, *alone);
    }
  }
}

struct ConvolutionalImpl : torch::nn::Module {
  ConvolutionalImpl() {
    torch::manual_seed(1);
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)));
    fc = register_module("fc", torch::nn::Linear(4, 3));
    to(torch::kDouble);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc(conv(x.contiguous(at::MemoryFormat::ChannelsLast)).mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Convolutional);

RANK_TEST(OwnModule, ChannelsLast, 2) {
  Convolutional module;
  DataParallel model(module, session_of(rank));
  const Samples own = Samples(6, 0, {3, 5, 5}).slice(rank);
  squared_error(model(own.x), own.y).backward();
  EXPECT_EQ(module->conv->weight.grad().strides(), module->conv->weight.strides());
  EXPECT_FALSE(module->conv->weight.is_contiguous());
  expect_same_training(rank, Convolutional(), Convolutional(), small_buckets(), {3, 5, 5});
}

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    torch::manual_seed(1);
    const auto linear = [](int in, int out) { return torch::nn::Linear(in, out); };
    first = register_module("first", linear(6, 8));
    second = register_module("second", linear(8, 8));
    third = register_module("third", linear(8, 3));
    first->to(torch::kDouble);
    second->to(torch::kBFloat16);
    third->to(torch::kFloat);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor hidden = second(torch::tanh(first(x)).to(torch::kBFloat16));
    return third(torch::tanh(hidden).to(torch::kFloat)).to(torch::kDouble);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(Mixed);

RANK_TEST(OwnModule, SeveralDtypes, 2) {
  Mixed module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  const Samples all(6), own = all.slice(rank);
  for (int step = 0; step < 2; ++step) {
    module->zero_grad();
    alone->zero_grad();
    squared_error(model(own.x), own.y).backward();
    for (std::int64_t part = 0; part < rank.size(); ++part) {  // rounds as the ranks do
      const Samples theirs = all.slice(part * 3, 3);
      (squared_error(alone(theirs.x), theirs.y) / rank.size()).backward();
    }
    const auto wanted = alone->named_parameters();
    for (const auto& item : module->named_parameters()) {
      const double bound = item.value().scalar_type() == torch::kBFloat16 ? 0.02 : 2e-3;
      EXPECT_EQ(item.value().grad().scalar_type(), item.value().scalar_type());
      EXPECT_LE(largest(item.value().grad() - wanted[item.key()].grad()),
                bound * largest(wanted[item.key()].grad()))
          << item.key();
    }
  }
}

class DoublingHook final : public BucketHook {
 public:
  Work start(const GradientBucket& bucket) override {
    bucket.gradients.mul_(2);
    return bucket.group->all_reduce(bucket.gradients, ReduceOp::kAverage, bucket.call);
  }
  void finish(const GradientBucket& bucket) override { ++finished; }
  int finished = 0;
};

RANK_TEST(OwnModule, CallsBucketHooks, 2) {
  Mlp module, alone;
  const auto hook = std::make_shared<DoublingHook>();
  DataParallelOptions options = small_buckets();
  options.hook = hook;
  DataParallel model(module, session_of(rank), options);
  const Samples all(6), own = all.slice(rank);
  squared_error(model(own.x), own.y).backward();
  EXPECT_EQ(hook->finished, model.buckets());
  (2 * squared_error(alone(all.x), all.y)).backward();
  expect_same_gradients(*module, *alone);
}

class CountingHook final : public BucketHook {
 public:
  Work start(const GradientBucket& bucket) override {
    ++started;
    return bucket.group->all_reduce(bucket.gradients, ReduceOp::kAverage, bucket.call);
  }
  void finish(const GradientBucket& bucket) override {}
  int started = 0;
};

RANK_TEST(OwnModule, StartsBucketsDuringTheBackwardPass, 2) {
  Mlp module;
  const auto hook = std::make_shared<CountingHook>();
  DataParallelOptions options = small_buckets();
  options.buckets.bytes = 300;  // the second layer's weight alone
  options.hook = hook;
  DataParallel model(module, session_of(rank), options);
  const Samples own = Samples(6).slice(rank);
  for (int step = 0; step < 3; ++step) {
    int half_way = 0;
    const int before = hook->started;
    const torch::Tensor hidden = module->first(own.x);
    hidden.register_hook([&](const torch::Tensor&) { half_way = hook->started - before; });
    const torch::Tensor output = module->third(torch::tanh(module->second(torch::tanh(hidden))));
    squared_error(output, own.y).backward();
    // The first layer's gradients are not there yet.
    EXPECT_GE(half_way, 2);
    EXPECT_EQ(hook->started - before, model.buckets());
    EXPECT_LT(half_way, model.buckets());
  }
}

void expect_compressed(Rank& rank, std::shared_ptr<BucketHook> hook, double bound) {
  Mlp module, alone;
  module->to(torch::kFloat);
  alone->to(torch::kFloat);
  DataParallelOptions options = small_buckets();
  options.hook = std::move(hook);
  DataParallel model(module, session_of(rank), options);
  const Samples all(6), own = all.slice(rank);
  const auto loss = [](auto& net, const Samples& samples) {
    return squared_error(net->forward(samples.x.to(torch::kFloat)), samples.y.to(torch::kFloat));
  };
  for (int step = 0; step < 3; ++step) {
    module->zero_grad();
    alone->zero_grad();
    loss(module, own).backward();
    loss(alone, all).backward();
    for (std::size_t i = 0; i < module->parameters().size(); ++i) {
      const torch::Tensor wanted = alone->parameters()[i].grad();
      const torch::Tensor actual = module->parameters()[i].grad();
      EXPECT_LE(largest(actual - wanted), 2 * bound * largest(wanted));
      EXPECT_FALSE(torch::equal(actual, wanted));  // it was rounded
    }
  }
}

RANK_TEST(OwnModule, CompressesToBf16, 2) {
  expect_compressed(rank, compress_to_bf16(), 1.0 / 128);
}

RANK_TEST(OwnModule, CompressesToFp16, 2) {
  expect_compressed(rank, compress_to_fp16(), 1.0 / 1024);
}

}  // namespace
}  // namespace troika::test
