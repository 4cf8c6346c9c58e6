// Models of several kinds trained on arrays that are spread over ranks, against the same on one
// rank: several inputs, batch-norms, tokens, and files that differ.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/capi/array_model.h>
#include <troika/checkpoint/tensors.h>

#include <filesystem>
#include <fstream>

#include "rank_helper.h"
#include "support/script_file.h"

namespace troika::test {
namespace {

constexpr std::string_view kTraining = R"(
[train]
steps = 20
precision = "fp64"
device = "cpu"
grad_clip = 0.5
[optimizer]
kind = "adamw"
lr = 0.01
warmup_steps = 1
)";

Recipe recipe_of(const std::string& model) {
  return parse_array_recipe("[model]\n" + model + std::string(kTraining), "recipe");
}

// The file, which rank 0 writes.
std::string script_of(Rank& rank, void (*write)(const std::filesystem::path&)) {
  const std::filesystem::path path = rank.folder() / "net.pt";
  if (rank.index() == 0) write(path);
  rank.wait_for_all("the script is there");
  return "kind = \"torchscript\"\npath = \"" + path.string() + "\"\n";
}

std::string script_of_two_inputs(Rank& rank) {
  return script_of(rank, write_script_of_two_inputs) +
         "loss = \"mean_square\"\n"
         "inputs = {x = {shape = [3]}, ids = {shape = [2], dtype = \"int64\", classes = 5}}\n"
         "targets = {score = {shape = [1]}}\n"
         "outputs = {score = {shape = [1]}, hidden = {shape = [4]}}\n";
}

std::string script_of_a_norm(Rank& rank) {
  return script_of(rank, [](const auto& path) { write_script(path); }) +
         "inputs = {x = {shape = [6]}}\ntargets = {y = {classes = 3}}\n";
}

// The samples [first, first + count) of a step.
ArrayBatch samples_of(std::int64_t step, std::int64_t first, std::int64_t count) {
  const at::Tensor n = at::arange(first, first + count, at::kDouble) + 100 * step;
  const at::Tensor x = at::outer(n, at::arange(1, 4, at::kDouble)).sin_();
  const at::Tensor ids = at::stack({n.remainder(5), (n + step).remainder(3)}, 1).to(at::kInt);
  const at::Tensor score = x.sum(1) + 0.3 * ids.sum(1);
  return {count, {{"ids", ids}, {"x", x}}, {{"score", score}}};
}

// The tensors of the file that a model writes.
std::vector<NamedTensor> saved(const ArrayModel& model, const std::filesystem::path& path) {
  model.save(path);
  return load_tensors(path);
}

void expect_equal_models(const std::vector<NamedTensor>& own, const std::vector<NamedTensor>& other,
                         double bound) {
  ASSERT_EQ(own.size(), other.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].name, other[i].name);
    EXPECT_TRUE(at::allclose(own[i].tensor, other[i].tensor, bound, bound)) << own[i].name;
  }
}

// Rank r has r samples more than rank 0, which has none in every other step.
RANK_TEST(ArrayModel, OfSeveralInputsTrainsAsOneRankDoes, 1, 2, 4) {
  const Recipe recipe = recipe_of(script_of_two_inputs(rank));
  ArrayModel model(Session::on(rank.group()), recipe), alone(Session::on(Group()), recipe);
  for (std::int64_t step = 0; step < 3; ++step) {
    const std::int64_t least = rank.size() > 1 && step % 2 == 1 ? 0 : 2;
    std::int64_t first = 0, all = 0;
    for (int each = 0; each < rank.size(); ++each) {
      if (each == rank.index()) first = all;
      all += least + each;
    }
    const double loss = model.step([&] { return samples_of(step, first, least + rank.index()); });
    const double expected = alone.step([&] { return samples_of(step, 0, all); });
    EXPECT_NEAR(loss, expected, 1e-12 * expected) << step;
  }
  const std::string own = "alone" + std::to_string(rank.index());
  const auto trained = saved(alone, rank.folder() / own);
  expect_equal_models(saved(model, rank.folder() / "model"), trained, 1e-12);
  const ArrayBatch probe = samples_of(9, 0, 5);
  const TensorMap found = model.predict(5, probe.inputs), wanted = alone.predict(5, probe.inputs);
  for (const char* name : {"score", "hidden"}) {
    EXPECT_TRUE(at::allclose(found.at(name), wanted.at(name), 1e-12, 1e-12)) << name;
  }
  EXPECT_EQ(found.at("hidden").sizes(), at::IntArrayRef({5, 4}));
  ASSERT_EQ(model.losses().size(), 3);
  EXPECT_EQ(model.learning_rate(), alone.learning_rate());
}

at::Tensor values_of_a_norm(std::int64_t step, std::int64_t first, std::int64_t count) {
  return at::outer(at::arange(first, first + count, at::kDouble) + 50 * step,
                   at::arange(1, 7, at::kDouble))
      .sin_();
}

at::Tensor classes_for(const at::Tensor& x) {
  return (x.select(1, 0) > 0).to(at::kDouble) + (x.select(1, 1) > 0).to(at::kDouble);
}

// Every rank has the running statistics of all, also one that has had no samples; and a step that a
// rank refuses leaves them alone.
RANK_TEST(ArrayModel, OfABatchNormPredictsTheSameOnEveryRank, 2, 3) {
  const Recipe recipe = recipe_of(script_of_a_norm(rank));
  ArrayModel model(Session::on(rank.group()), recipe), alone(Session::on(Group()), recipe);
  const bool idle = rank.index() == rank.size() - 1;
  for (std::int64_t step = 0; step < 3; ++step) {
    // The ranks that have samples have the same ones.
    const at::Tensor x = values_of_a_norm(step, 0, 8);
    const at::Tensor own = idle ? x.narrow(0, 0, 0) : x;
    const double expected = alone.step(x, classes_for(x));
    EXPECT_THROW(model.step(own, idle ? at::zeros({7}) : classes_for(x)), UsageError);
    EXPECT_NEAR(model.step(own, classes_for(own)), expected, 1e-12);
  }
  const at::Tensor probe = values_of_a_norm(7, 0, 5);
  EXPECT_TRUE(at::allclose(model.predict(probe), alone.predict(probe), 1e-11, 1e-11));

  const at::Tensor x = values_of_a_norm(4, 20 * rank.index(), 4 + rank.index());
  model.step(x, classes_for(x));
  const at::Tensor here = model.predict(probe), of_rank_zero = here.clone();
  rank.group("probe").broadcast(of_rank_zero, 0, Rank::call("probe")).wait();
  EXPECT_TRUE(here.equal(of_rank_zero));
  EXPECT_FALSE(here.equal(alone.predict(probe)));

  // Those of the file are what every rank has after it is loaded.
  const auto trained = saved(model, rank.folder() / "model");
  ArrayModel again(Session::on(rank.group()), recipe);
  again.load(rank.folder() / "model");
  EXPECT_TRUE(again.predict(probe).equal(here));
  const auto mean = std::ranges::find(trained, "norm.running_mean", &NamedTensor::name);
  EXPECT_NE(mean->tensor.abs().max().item<double>(), 0);
}

// Statistics over all ranks together: as one rank that has all samples.
RANK_TEST(ArrayModel, OfANormOverAllRanksTrainsAsOneRankDoes, 1, 2, 4) {
  const Recipe recipe = recipe_of(
      "kind = \"resnet\"\nclasses = 3\nblocks = [1, 1]\nwidth = 4\nimage_size = 6\nchannels = 1\n"
      "norm = \"sync_batch\"\n");
  ArrayModel model(Session::on(rank.group()), recipe), alone(Session::on(Group()), recipe);
  const std::int64_t each = 2, all = each * std::max(1, rank.size() - 1);
  for (std::int64_t step = 0; step < 3; ++step) {
    const at::Tensor images =
        (at::arange(all * 36, at::kDouble) * (1.3 + static_cast<double>(step))).sin_();
    const at::Tensor x = images.view({all, 1, 6, 6}), y = at::arange(all).remainder(3);
    const bool idle = rank.size() > 1 && rank.index() == rank.size() - 1;  // without samples
    const std::int64_t first = idle ? 0 : each * rank.index(), count = idle ? 0 : each;
    EXPECT_NEAR(model.step(x.narrow(0, first, count), y.narrow(0, first, count)), alone.step(x, y),
                1e-11);
  }
  const at::Tensor probe = at::arange(72, at::kDouble).cos_().view({2, 1, 6, 6});
  EXPECT_TRUE(at::allclose(model.predict(probe), alone.predict(probe), 1e-10, 1e-10));
}

RANK_TEST(ArrayModel, OfTokensTrainsAsOneRankDoes, 2) {
  const Recipe recipe = recipe_of(
      "kind = \"gpt\"\nlayers = 1\ndim = 8\nheads = 2\nffn_dim = 12\nvocab_size = 256\nseq_len = "
      "4\n");
  ArrayModel model(Session::on(rank.group()), recipe), alone(Session::on(Group()), recipe);
  const at::Tensor tokens = at::arange(12).view({3, 4}), next = tokens + 1;
  next.select(1, 3).fill_(-100);
  const std::int64_t first = rank.index(), count = 1 + rank.index();
  for (int step = 0; step < 3; ++step) {
    EXPECT_NEAR(model.step(tokens.narrow(0, first, count), next.narrow(0, first, count)),
                alone.step(tokens, next), 1e-12);
  }
}

std::string line_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const DataError& error) {
    return error.what();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

// A module that refuses its input on one rank alone: told everywhere, and the model goes on.
RANK_TEST(ArrayModel, WhatAModuleRefusesOnOneRankIsToldEverywhere, 2) {
  const Recipe recipe =
      recipe_of(script_of(rank,
                          [](const std::filesystem::path& path) {
                            torch::jit::Module net("net");
                            net.register_parameter("w", at::ones({1, 2}).requires_grad_(), false);
                            net.define(R"(
    def forward(self, x):
        assert bool(x.max() < 50), "too hot"
        return torch.linear(x, self.w)
)");
                            net.save(path.string());
                          }) +
                "loss = \"mean_square\"\ninputs = {x = {shape = [2]}}\n"
                "targets = {y = {shape = [1]}}\n");
  ArrayModel model(Session::on(rank.group()), recipe), alone(Session::on(Group()), recipe);
  const at::Tensor x = at::tensor({1.0, 2.0}).view({1, 2}), y = at::full({1, 1}, 0.5);
  const at::Tensor given = rank.index() == 1 ? x * 100 : x;
  for (int step = 0; step < 2; ++step) {
    for (const std::string& line :
         {line_of([&] { model.step(given, y); }), line_of([&] { (void)model.loss(given, y); })}) {
      EXPECT_NE(line.find("too hot"), std::string::npos) << line;
      EXPECT_TRUE(line.ends_with(", on rank 1")) << line;
    }
    EXPECT_NEAR(model.step(x, y), alone.step(x, y), 1e-12);
  }
  EXPECT_EQ(model.steps(), 2);
}

void write_linear(const at::Tensor& weight, const std::string& program) {
  torch::jit::Module net("net");
  net.register_parameter("first", at::ones({1}).requires_grad_(), false);
  net.register_parameter("w", weight.requires_grad_(), false);
  net.define("def forward(self, x):\n    return " + program + "\n");
  net.save("net.pt");
}

// Each rank reads the path from its own folder, and finds what is not the same there.
RANK_TEST(ArrayModel, OfAnotherFileIsRefusedEverywhere, 3) {
  const std::filesystem::path own = rank.folder() / std::to_string(rank.index());
  std::filesystem::create_directories(own);
  std::filesystem::current_path(own);
  const std::string program = "torch.linear(x, self.w) * self.first";
  at::Tensor weight = at::ones({1, 2});
  write_linear(weight, program);
  const Recipe recipe = recipe_of(
      "kind = \"torchscript\"\npath = \"net.pt\"\nloss = \"mean_square\"\n"
      "inputs = {x = {shape = [2]}}\ntargets = {y = {shape = [1]}}\n");
  const auto told = [&](const std::string& group) {
    return line_of([&] { const ArrayModel model(Session::on(rank.group(group)), recipe); });
  };
  EXPECT_EQ(told("copies"), "no error");
  // The last bit of the last tensor, on the last rank.
  if (rank.index() == 2) weight.view(at::kInt)[0][1] += 1;
  write_linear(weight, program);
  EXPECT_EQ(told("values"),
            "the model's file 'net.pt' differs between rank 0 and rank 2, first in tensor 'w'");
  // The same tensors in another program.
  write_linear(at::ones({1, 2}), rank.index() == 1 ? program + " + 1" : program);
  EXPECT_EQ(told("programs"),
            "the model's file 'net.pt' differs between rank 0 and rank 1, first in record "
            "'code/__torch__.py'");
  if (rank.index() == 2) std::filesystem::remove("net.pt");
  EXPECT_EQ(told("missing"), "there is no file 'net.pt', on rank 2");
}

}  // namespace
}  // namespace troika::test
