// What programs do to a module besides training it: each is right, or an error that names the
// parameter.
#include <troika/nn/sync_batch_norm.h>
#include <troika/observe/log.h>
#include <troika/parallel/data_parallel/zero_redundancy_optimizer.h>

#include <fstream>
#include <limits>
#include <optional>

#include "ranks/own_module/own_module.h"

namespace troika::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

RANK_TEST(OwnModuleUsage, ZeroGrad, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  torch::optim::SGD optimizer(module->parameters(), 0.1);
  backward(*alone);
  const std::vector<std::function<void()>> ways = {[&] { optimizer.zero_grad(); },
                                                   [&] { optimizer.zero_grad(false); },
                                                   [&] { module->zero_grad(); },
                                                   [&] { module->zero_grad(false); },
                                                   [&] {
                                                     for (auto& parameter : module->parameters())
                                                       parameter.grad().zero_();
                                                   },
                                                   [&] {
                                                     for (auto& parameter : module->parameters()) {
                                                       parameter.mutable_grad() =
                                                           torch::zeros_like(parameter);
                                                     }
                                                   }};
  backward(model);
  for (const auto& way : ways) {
    way();
    backward(model);
    expect_same_gradients(*module, *alone);
  }
}

DataParallelOptions stopping(int stage = 0) {
  DataParallelOptions options = small_buckets();
  options.zero_stage = stage;
  options.on_nonfinite = DataParallelOptions::OnNonfinite::kStop;
  return options;
}

// A batch whose loss is NaN on one rank, through one layer alone.
RANK_TEST(OwnModuleUsage, NamesTheRankWhoseGradientIsNotFinite, 3) {
  for (const int stage : {0, 1}) {
    Mlp module, alone;
    DataParallel model(module, session_of(rank), stopping(stage));
    std::optional<ZeroRedundancyOptimizer<torch::optim::SGD>> optimizer;
    if (stage > 0) optimizer.emplace(model, 0.1);
    for (const double wrong :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      std::string said;
      module->zero_grad();
      try {
        const Samples batch(6);
        torch::Tensor loss = squared_error(model(batch.x), batch.y);
        if (rank.index() == 2) loss = loss + (module->second->bias * wrong).sum();
        loss.backward();
      } catch (const NonFiniteError& error) {
        said = error.what();
      }
      EXPECT_EQ(said, "the gradient of parameter 'second.bias' is not finite, on rank 2");
    }
    if (stage > 0) continue;
    // A program that has caught it leaves the step out.
    module->zero_grad();
    alone->zero_grad();
    backward(model);
    backward(*alone);
    expect_same_gradients(*module, *alone);
  }
}

RANK_TEST(OwnModuleUsage, AveragesWhatIsNotFiniteUnlessAsked, 2) {
  Mlp module;
  DataParallel model(module, session_of(rank), small_buckets());
  const Samples batch(6);
  torch::Tensor loss = squared_error(model(batch.x), batch.y);
  if (rank.index() == 1) {
    loss = loss + (module->second->bias * std::numeric_limits<double>::quiet_NaN()).sum();
  }
  loss.backward();
  EXPECT_TRUE(module->second->bias.grad().isnan().all().item<bool>());
  EXPECT_TRUE(module->first->bias.grad().isfinite().all().item<bool>());
}

// On the rank whose gradient it is, and once: later passes and other parameters say nothing more.
RANK_TEST(OwnModuleUsage, WarnsOnceOfWhatIsNotFiniteIfAsked, 2) {
  std::vector<std::string> said;
  configure_log({.level = LogLevel::kWarning,
                 .writer = [&](LogLevel, std::string_view text) { said.emplace_back(text); }});
  Mlp module;
  DataParallelOptions options = small_buckets();
  options.on_nonfinite = DataParallelOptions::OnNonfinite::kWarn;
  DataParallel model(module, session_of(rank), options);
  const auto bias_of = [&](int pass) {
    return pass == 2 ? module->first->bias : module->second->bias;
  };
  for (int pass = 0; pass < 3; ++pass) {
    module->zero_grad();
    const Samples batch(6);
    torch::Tensor loss = squared_error(model(batch.x), batch.y);
    if (rank.index() == 1 && pass > 0) {
      loss = loss + (bias_of(pass) * std::numeric_limits<double>::infinity()).sum();
    }
    loss.backward();
    EXPECT_EQ(bias_of(pass).grad().isfinite().all().item<bool>(), pass == 0) << pass;
  }
  configure_log({});
  const std::string expected =
      "the gradient of parameter 'second.bias' is not finite on rank 1, and makes that of every "
      "rank so; it is said once";
  if (rank.index() == 1) {
    ASSERT_EQ(said.size(), 1);
    EXPECT_NE(said.front().find(expected), std::string::npos) << said.front();
  } else {
    EXPECT_TRUE(said.empty()) << said.front();
  }
}

RANK_TEST(OwnModuleUsage, LoadOnAllRanks, 2) {
  Mlp module(1), alone(7);
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  const std::string path = rank.folder() / ("saved-" + std::to_string(rank.index()));
  torch::save(alone, path);
  torch::load(module, path);
  expect_alike_in_two_steps(model, *module, *alone);
}

RANK_TEST(OwnModuleUsage, WriteBetweenForwardAndBackward, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  const Samples batch(6);
  for (const bool bias : {true, false}) {
    const torch::Tensor loss = squared_error(model(batch.x), batch.y);
    {
      const torch::NoGradGuard no_grad;
      (bias ? module->second->bias : module->third->weight).mul_(1);
    }
    EXPECT_THAT(usage_error_of([&] { loss.backward(); }),
                HasSubstr(bias ? "parameter 'second.bias' was written to between forward"
                               : "parameter 'third.weight' was written to between forward"));
  }
  module->zero_grad();
  backward(model);
  backward(*alone);
  expect_same_gradients(*module, *alone);
}

// A forward pass that returns more than a tensor.
struct ManyOutputsImpl : torch::nn::Module {
  using Outputs = std::tuple<torch::Tensor, std::vector<torch::Tensor>>;
  ManyOutputsImpl() { base = register_module("base", Mlp()); }
  Outputs forward(const torch::Tensor& x) {
    const torch::Tensor y = base(x);
    return {y, {y + 1, y * 2}};
  }
  Mlp base{nullptr};
};
TORCH_MODULE(ManyOutputs);

RANK_TEST(OwnModuleUsage, WriteBetweenForwardAndBackwardOfManyOutputs, 2) {
  ManyOutputs module;
  DataParallel model(module, session_of(rank), small_buckets());
  const Samples batch(6);
  for (int output = 0; output < 3; ++output) {
    const auto [first, others] = model(batch.x);
    const torch::Tensor loss =
        squared_error(output == 0 ? first : others[static_cast<std::size_t>(output) - 1], batch.y);
    {
      const torch::NoGradGuard no_grad;
      module->base->second->bias.mul_(1);
    }
    EXPECT_THAT(usage_error_of([&] { loss.backward(); }),
                HasSubstr("parameter 'base.second.bias' was written to between forward"));
  }
}

RANK_TEST(OwnModuleUsage, ToAnotherDtype, 2) {
  Mlp module;
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  module->to(torch::kFloat);
  module->zero_grad();
  const Samples batch(6);
  EXPECT_THAT(
      usage_error_of([&] {
        squared_error(model(batch.x.to(torch::kFloat)), batch.y.to(torch::kFloat)).backward();
      }),
      HasSubstr("parameter 'first.weight' has changed its dtype"));
}

// LibTorch itself keeps a parameter from becoming one of another kind of memory.
RANK_TEST(OwnModuleUsage, ToAnotherDevice, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  EXPECT_THROW(module->to(torch::kMeta), c10::Error);
  expect_alike_in_two_steps(model, *module, *alone);
}

// Values are rounded on all ranks alike, and are what they were trained as before the next step.
RANK_TEST(OwnModuleUsage, ToAnotherDtypeAndBack, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  for (auto* net : {&module, &alone}) {
    (*net)->to(torch::kFloat);
    (*net)->to(torch::kDouble);
  }
  expect_alike_in_two_steps(model, *module, *alone);
}

torch::nn::Conv2d small_convolution() {
  torch::manual_seed(1);
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3));
  conv->to(torch::kDouble);
  return conv;
}

// To channels-last and back, as a program does that has found its convolutions faster so.
RANK_TEST(OwnModuleUsage, ToAnotherMemoryFormat, 2) {
  torch::nn::Conv2d module = small_convolution(), alone = small_convolution();
  DataParallel model(module, session_of(rank), small_buckets());
  torch::optim::SGD optimizer(module->parameters(), 0.1), reference(alone->parameters(), 0.1);
  const torch::Tensor images = doubles({6, 3, 5, 5}, 3);
  const auto train = [&](auto& net, torch::optim::SGD& update, at::MemoryFormat format) {
    update.zero_grad();
    net.forward(images.contiguous(format)).square().mean().backward();
  };
  train(model, optimizer, at::MemoryFormat::Contiguous);
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::Contiguous}) {
    for (auto* net : {&module, &alone}) {
      (*net)->weight.set_data((*net)->weight.contiguous(format));
      EXPECT_TRUE((*net)->weight.is_contiguous(format));
    }
    for (int step = 0; step < 2; ++step) {
      train(model, optimizer, format);
      train(*alone, reference, format);
      expect_same_gradients(*module, *alone);
      optimizer.step();
      reference.step();
    }
    expect_same_values(*module, *alone);
  }
}

// Buckets are laid out once more after the first pass, as they were.
RANK_TEST(OwnModuleUsage, ToAnotherMemoryFormatOnOneRank, 2) {
  torch::nn::Conv2d module = small_convolution(), alone = small_convolution();
  DataParallel model(module, session_of(rank), small_buckets());
  if (rank.index() == 1) {
    module->weight.set_data(module->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  const torch::Tensor images = doubles({6, 3, 5, 5}, 3);
  for (int step = 0; step < 3; ++step) {
    module->zero_grad();
    alone->zero_grad();
    model.forward(images).square().mean().backward();
    alone->forward(images).square().mean().backward();
    expect_same_gradients(*module, *alone);
  }
}

struct GrowingImpl : torch::nn::Module {
  GrowingImpl() { base = register_module("base", Mlp()); }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = base(x);
    return late.defined() ? y * late : y;
  }
  Mlp base{nullptr};
  torch::Tensor late;
};
TORCH_MODULE(Growing);

RANK_TEST(OwnModuleUsage, ParameterAddedLater, 2) {
  Growing module;
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  module->late = module->register_parameter("late", torch::ones(3, torch::kDouble));
  EXPECT_THAT(usage_error_of([&] { backward(model); }), HasSubstr("parameter 'late' was added"));
}

// The graph is as large as before, and the old layer may be unused.
RANK_TEST(OwnModuleUsage, LayerReplacedLater, 2) {
  for (const bool keeps_gradient : {false, true}) {
    Mlp module;
    DataParallelOptions options = small_buckets();
    options.unused = DataParallelOptions::Unused::kAllow;
    DataParallel model(module, session_of(rank), options);
    backward(model);
    if (!keeps_gradient) module->zero_grad();
    module->third = module->replace_module("third", torch::nn::Linear(5, 3));
    module->third->to(torch::kDouble);
    for (int step = 0; step < 2; ++step) {
      EXPECT_THAT(usage_error_of([&] { backward(model); }),
                  HasSubstr("parameter 'third.weight' was added to the module"));
    }
  }
}

RANK_TEST(OwnModuleUsage, FrozenAndThawedLater, 2) {
  Mlp module;
  module->first->bias.requires_grad_(false);
  DataParallel model(module, session_of(rank), small_buckets());
  backward(model);
  module->first->bias.requires_grad_(true);
  module->zero_grad();
  EXPECT_THAT(usage_error_of([&] { backward(model); }), HasSubstr("'first.bias' was added"));
  module->first->bias.requires_grad_(false);
  module->third->bias.requires_grad_(false);
  module->zero_grad();
  EXPECT_THAT(usage_error_of([&] { backward(model); }),
              HasSubstr("parameter 'third.bias' got no gradient"));
}

RANK_TEST(OwnModuleUsage, SparseGradient, 2) {
  torch::nn::Embedding module(torch::nn::EmbeddingOptions(5, 3).sparse(true));
  DataParallel model(module, session_of(rank));
  EXPECT_THAT(usage_error_of([&] { model(torch::zeros({2}, torch::kLong)).sum().backward(); }),
              HasSubstr("the gradient of parameter 'weight' is not a dense tensor"));
}

RANK_TEST(OwnModuleUsage, GraphOfGradients, 2) {
  torch::nn::Linear module(3, 2);
  DataParallel model(module, session_of(rank));
  const auto differentiate = [&] {
    const torch::Tensor loss = model(torch::ones({4, 3})).square().sum();
    loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  };
  EXPECT_THAT(
      usage_error_of(differentiate),
      testing::ContainsRegex("the gradient of parameter '(weight|bias)' has a graph of its"));
}

RANK_TEST(OwnModuleUsage, WrappedTwice, 2) {
  Mlp module;
  {
    const DataParallel model(module, session_of(rank));
    EXPECT_THAT(usage_error_of([&] { const DataParallel again(module, session_of(rank)); }),
                HasSubstr("parameter 'first.weight' is in another DataParallel already"));
    EXPECT_THAT(usage_hint_of([&] { const DataParallel again(module, session_of(rank)); }),
                HasSubstr("keep one DataParallel of a module"));
  }
  DataParallel model(module, session_of(rank));  // the first has let go of it
  backward(model);
}

RANK_TEST(OwnModuleUsage, WrappedAgainAfterUnfreezing, 2) {
  Mlp module, alone;
  const auto freeze_first = [](Mlp& net, bool frozen) {
    for (auto& parameter : net->first->parameters()) parameter.requires_grad_(!frozen);
  };
  freeze_first(module, true);
  DataParallel model(module, session_of(rank), small_buckets());
  freeze_first(module, false);
  EXPECT_THAT(usage_hint_of([&] { backward(model); }), HasSubstr("call unwrap()"));
  EXPECT_THAT(usage_hint_of([&] { model = DataParallel(module, session_of(rank)); }),
              HasSubstr("call unwrap()"));
  model.unwrap();
  EXPECT_THAT(usage_error_of([&] { (void)model.buckets(); }), HasSubstr("it was unwrapped"));
  EXPECT_THAT(usage_error_of([&] { (void)model(Samples(6).x); }), HasSubstr("it was unwrapped"));
  module->zero_grad();
  model = DataParallel(module, session_of(rank), small_buckets());
  backward(model);
  backward(*alone);
  expect_same_gradients(*module, *alone);
}

RANK_TEST(OwnModuleUsage, DropsOutByRank, 2) {
  torch::nn::Sequential module(torch::nn::Linear(4, 64), torch::nn::Dropout(0.5));
  const DataParallel model(module, session_of(rank));
  const auto masks = [&] {
    const torch::Tensor dropped = module->forward(torch::ones({1, 4})).eq(0);
    std::string text;
    for (int i = 0; i < 64; ++i) text += dropped[0][i].item<bool>() ? '0' : '1';
    return model.session().gather(text, "masks");
  };
  torch::manual_seed(1);
  const std::vector<std::string> shared = masks();
  EXPECT_EQ(shared[0], shared[1]);  // what seed_by_rank() is for
  model.seed_by_rank(1);
  const std::vector<std::string> all = masks();
  EXPECT_NE(all[0], all[1]);
  model.seed_by_rank(1);
  EXPECT_EQ(masks(), all);
}

RANK_TEST(OwnModuleUsage, NothingToTrain, 2) {
  Mlp module;
  for (auto& parameter : module->parameters()) parameter.requires_grad_(false);
  EXPECT_THAT(usage_error_of([&] { const DataParallel model(module, session_of(rank)); }),
              HasSubstr("no parameters to train"));
  EXPECT_THAT(usage_hint_of([&] { const DataParallel model(module, session_of(rank)); }),
              HasSubstr("requires_grad"));
}

RANK_TEST(OwnModuleUsage, NoModuleOnOneRank, 2) {
  const Session session = session_of(rank);
  Mlp module = rank.index() == 1 ? Mlp(nullptr) : Mlp();
  const auto make = [&] { const DataParallel model(module, session); };
  EXPECT_THAT(usage_error_of(make), testing::StrEq("DataParallel is given no module, on rank 1"));
  EXPECT_THAT(usage_hint_of(make), HasSubstr("a holder made of nullptr is empty"));
}

// Values that cannot be written to where they are, on one rank or on all.
RANK_TEST(OwnModuleUsage, ExpandedAndSparse, 2) {
  const Session session = session_of(rank);
  const torch::Tensor expanded = torch::arange(3, torch::kDouble).expand({2, 3});
  const auto error_of = [&](const Mlp& module) {
    return usage_error_of([&] { const DataParallel model(module, session); });
  };
  Mlp module;
  module->register_buffer("table", rank.index() == 1 ? expanded : expanded.clone());
  EXPECT_THAT(error_of(module), HasSubstr("buffer 'table' has several elements at one address"));
  module = Mlp();
  module->register_buffer("table", expanded.to_sparse());
  EXPECT_THAT(error_of(module),
              HasSubstr("buffer 'table' is not a dense tensor, on ranks 0 and 1"));
  for (const bool trained : {true, false}) {
    module = Mlp();
    module->register_parameter("scale", expanded.detach(), trained);
    EXPECT_THAT(error_of(module),
                HasSubstr("parameter 'scale' has several elements at one address"));
  }
}

// A backward pass that fails half way does not spoil the next one.
RANK_TEST(OwnModuleUsage, FailedBackwardPass, 2) {
  Mlp module, alone;
  DataParallel model(module, session_of(rank), small_buckets());
  const Samples batch(6);
  for (int step = 0; step < 2; ++step) {
    const torch::Tensor hidden = torch::tanh(module->second(torch::tanh(module->first(batch.x))));
    hidden.register_hook([](const torch::Tensor&) { throw std::runtime_error("half way"); });
    const torch::Tensor loss = squared_error(module->third(hidden), batch.y);
    EXPECT_THROW(loss.backward(), std::runtime_error);
    module->zero_grad();
    alone->zero_grad();
    backward(model);
    backward(*alone);
    expect_same_gradients(*module, *alone);
  }
}

struct OtherImpl : torch::nn::Module {
  explicit OtherImpl(int kind) {
    first = register_module("first", torch::nn::Linear(4, kind == 1 ? 3 : 2));
    if (kind == 2) register_parameter("more", torch::ones(3));
    if (kind == 3) first->to(torch::kDouble);
    if (kind == 4) register_buffer("count", torch::ones(3));
    if (kind == 5) first->bias.requires_grad_(false);
    if (kind == 6) first->weight.set_data(first->weight.t().contiguous().t());
  }
  torch::nn::Linear first{nullptr};
};
TORCH_MODULE(Other);

RANK_TEST(OwnModuleUsage, ModulesThatDiffer, 3) {
  const std::vector<std::string> says = {
      "",
      "'first.weight' is Float [2, 4], trained on rank 0, and is Float [3, 4], trained on rank 1",
      "parameter 'more' is not there on rank 0, and is Float [3], trained on rank 1",
      "'first.weight' is Float [2, 4], trained on rank 0, and is Double [2, 4], trained on rank 1",
      "buffer 'count' is not there on rank 0, and is Float [3] on rank 1",
      "'first.bias' is Float [2], trained on rank 0, and is Float [2], frozen on rank 1",
      "trained on rank 0, and is Float [2, 4], trained, with strides"};
  for (int kind = 1; kind <= 6; ++kind) {
    Other module(rank.index() == 1 ? kind : 0);
    EXPECT_THAT(
        usage_error_of([&] { const DataParallel model(module, session_of(rank)); }),
        AllOf(HasSubstr(says[static_cast<std::size_t>(kind)]), testing::Not(HasSubstr("rank 2"))));
  }
}

RANK_TEST(OwnModuleUsage, SavesFromRankZero, 2) {
  Mlp module(static_cast<std::uint64_t>(rank.index()));
  const DataParallel model(module, session_of(rank));
  save_from_rank_0(model, rank.folder() / "model.pt");
  Mlp loaded(9);
  torch::load(loaded, (rank.folder() / "model.pt").string());
  expect_same_values(*loaded, *module, 0);
  EXPECT_THROW(save_from_rank_0(model, rank.folder() / "missing" / "model.pt"), StorageError);
  EXPECT_FALSE(std::filesystem::exists(rank.folder() / "missing"));
}

}  // namespace
}  // namespace troika::test
