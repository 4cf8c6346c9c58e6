// A GPT over the tensor axis is the GPT of one rank: the same loss and, in fp64 within 1e-11, the
// same gradients, for every choice of the recipe, whatever divides or does not.
#include <troika/nn/loss_head.h>
#include <troika/ops/cross_entropy.h>

#include <set>

#include "ranks/tensor_model.h"

namespace troika::test {
namespace {

TensorAxis axis_of(const Group& group) {
  return {group, Seconds(30)};
}

// A choice for each question, as numbers below kOptions.
constexpr std::array<int, 11> kOptions = {2, 2, 3, 2, 2, 2, 4, 4, 3, 2, 3};
constexpr int kCases = 60;
using Choices = std::array<int, kOptions.size()>;

Choices choices_of(int number) {
  const RandomStream stream(stream_key(4, "cases"), static_cast<std::uint64_t>(number));
  Choices choices{};
  for (std::size_t i = 0; i < kOptions.size(); ++i) {
    choices[i] = static_cast<int>(stream.below(i, static_cast<std::uint64_t>(kOptions[i])));
  }
  return choices;
}

struct GptCase {
  GptOptions options;
  Tokens tokens;
  ActivationCheckpoint checkpoint;
  double loss_scale;
};

GptCase case_of(const Choices& choices) {
  constexpr std::array<std::pair<int, int>, 4> kHeads = {{{3, 1}, {7, 7}, {8, 4}, {7, 1}}};
  constexpr std::array kActivations = {ActivationFunction::kSwiGlu, ActivationFunction::kGelu,
                                       ActivationFunction::kGeluTanh};
  const auto [heads, kv_heads] = kHeads[static_cast<std::size_t>(choices[6])];
  GptCase made{small_gpt(heads, kv_heads), static_cast<Tokens>(choices[7]),
               static_cast<ActivationCheckpoint>(choices[8]), choices[9] == 0 ? 1.0 : 64.0};
  made.options.norm = choices[0] == 0 ? Norm::kRmsNorm : Norm::kLayerNorm;
  made.options.position = choices[1] == 0 ? Position::kRope : Position::kLearned;
  made.options.activation = kActivations[static_cast<std::size_t>(choices[2])];
  made.options.bias = choices[3] == 1;
  made.options.dropout = choices[4] == 0 ? 0 : 0.2;
  made.options.tied_embeddings = choices[5] == 0;
  made.options.qk_norm = choices[10] > 0;
  made.options.qkv_bias = choices[10] == 2;
  return made;
}

TEST(TensorParallel, CasesHoldEveryPairOfChoices) {
  std::set<std::array<std::size_t, 4>> missing;
  for (std::size_t a = 0; a < kOptions.size(); ++a) {
    for (std::size_t b = a + 1; b < kOptions.size(); ++b) {
      for (int i = 0; i < kOptions[a]; ++i) {
        for (int j = 0; j < kOptions[b]; ++j) {
          missing.insert({a, static_cast<std::size_t>(i), b, static_cast<std::size_t>(j)});
        }
      }
    }
  }
  for (int number = 0; number < kCases; ++number) {
    const Choices choices = choices_of(number);
    for (std::size_t a = 0; a < kOptions.size(); ++a) {
      for (std::size_t b = a + 1; b < kOptions.size(); ++b) {
        missing.erase(
            {a, static_cast<std::size_t>(choices[a]), b, static_cast<std::size_t>(choices[b])});
      }
    }
  }
  EXPECT_EQ(missing.size(), 0u);
}

void expect_equal_to_one_rank(const GptCase& made, const Group& group) {
  const Microbatch batch = token_batch(made.options, made.tokens);
  TestModel single(made.options, {});
  TestModel split(made.options, {.tensor = axis_of(group), .checkpoint = made.checkpoint});
  const double expected = single.train(batch, made.loss_scale);
  const double loss = split.train(batch, made.loss_scale);
  EXPECT_LE(std::abs(loss - expected), 1e-11 * std::abs(expected));
  EXPECT_LE(std::abs(split.evaluate(batch) - single.evaluate(batch)),
            1e-11 * std::abs(single.evaluate(batch)));
  sum_partial_gradients(split.arena(), group);
  const Comparison comparison = compare_gradients(split.arena(), single.arena(), group);
  EXPECT_LE(comparison.worst, 1) << comparison.name;
}

RANK_FUNCTION(gpt_equals_one_rank) {
  const Group group = rank.group("tensor");
  const int stride = std::stoi(rank.argument("stride"));
  for (int number = 0; number < kCases; number += stride) {
    SCOPED_TRACE("case " + std::to_string(number));
    const GptCase made = case_of(choices_of(number));
    if (made.options.heads >= rank.size()) expect_equal_to_one_rank(made, group);
  }
}

TEST(TensorParallel, EqualsOneRank) {
  // On three ranks nothing divides; the others are there for what is special about their number.
  const std::pair<int, const char*> runs[] = {{2, "3"}, {3, "1"}, {4, "4"}};
  for (const auto& [ranks, stride] : runs) {
    expect_ranks("gpt_equals_one_rank", ranks,
                 {.engine = "shm", .arguments = {{"stride", stride}}});
  }
}

TEST(TensorParallel, EqualsOneRankOverMessages) {
  expect_ranks("gpt_equals_one_rank", 3, {.engine = "gloo", .arguments = {{"stride", "8"}}});
}

// More ranks than rows of the vocabulary, inner features and tokens.
RANK_TEST(TensorParallel, SlicesMayBeEmpty, 3) {
  const Group group = rank.group("tensor");
  for (const bool tied : {true, false}) {
    GptCase made{small_gpt(3, 3), Tokens::kPlain, ActivationCheckpoint::kNone, 1};
    made.options.tied_embeddings = tied;
    made.options.bias = true;
    made.options.vocab_size = 2;
    made.options.ffn_dim = 2;
    made.options.seq_len = 2;
    TestModel single(made.options, {});
    TestModel split(made.options, {.tensor = axis_of(group)});
    const Microbatch batch = token_batch(made.options, made.tokens, 1);
    EXPECT_NEAR(split.train(batch), single.train(batch), 1e-12);
    sum_partial_gradients(split.arena(), group);
    const Comparison comparison = compare_gradients(split.arena(), single.arena(), group);
    EXPECT_LE(comparison.worst, 1) << comparison.name;
  }
}

// The comparison above would notice: norms' gradients are partial sums until they are summed.
RANK_TEST(TensorParallel, GradientsOfNormsAreWrongUntilSummed, 2) {
  const Group group = rank.group("tensor");
  const GptOptions options = small_gpt(3, 3);
  const Microbatch batch = token_batch(options, Tokens::kPlain);
  TestModel single(options, {}), split(options, {.tensor = axis_of(group)});
  (void)single.train(batch);
  (void)split.train(batch);
  const Comparison before = compare_gradients(split.arena(), single.arena(), group);
  EXPECT_GT(before.worst, 1e6);
  EXPECT_NE(before.name.find("norm"), std::string::npos) << before.name;
  sum_partial_gradients(split.arena(), group);
  EXPECT_LE(compare_gradients(split.arena(), single.arena(), group).worst, 1);
}

std::vector<at::Tensor> bits_of(TestModel& model, const Microbatch& batch) {
  std::vector<at::Tensor> bits = {at::full({}, model.train(batch), at::kDouble)};
  for (const auto& parameter : model.arena().parameters()) {
    bits.push_back(parameter->gradient().clone());
  }
  return bits;
}

// Dropout and packed documents included, in fp64 and in bf16.
RANK_TEST(TensorParallel, CheckpointsGiveTheSameBits, 1, 2, 3) {
  const Group group = rank.group("tensor");
  for (const auto compute : {at::kDouble, at::kBFloat16}) {
    for (const bool rotary : {true, false}) {
      GptOptions options = small_gpt(7, 1);
      options.dropout = 0.2;
      options.position = rotary ? Position::kRope : Position::kLearned;
      options.qk_norm = rotary;
      const Microbatch batch = token_batch(options, Tokens::kIsolatedDocuments);
      const NumericTypes types = {compute, compute == at::kDouble ? at::kDouble : at::kFloat};
      TestModel kept(options, {.tensor = axis_of(group)}, types);
      const auto expected = bits_of(kept, batch);
      for (const auto checkpoint :
           {ActivationCheckpoint::kSelective, ActivationCheckpoint::kFull}) {
        TestModel again(options, {.tensor = axis_of(group), .checkpoint = checkpoint}, types);
        const auto found = bits_of(again, batch);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(found[i].equal(expected[i])) << i << " with " << static_cast<int>(checkpoint);
        }
      }
    }
  }
}

// Every rank knows the loss of all tokens, and it has the same bits everywhere.
RANK_TEST(TensorParallel, LossIsTheSameOnEveryRank, 3) {
  const Group group = rank.group("tensor");
  const GptOptions options = small_gpt(3, 1);
  TestModel model(options, {.tensor = axis_of(group)});
  const at::Tensor own =
      at::full({1}, model.train(token_batch(options, Tokens::kSomeIgnored)), at::kDouble);
  const at::Tensor all = at::empty({3}, at::kDouble);
  group.all_gather(all, own, Rank::call("losses")).wait();
  EXPECT_TRUE(all.eq(own).all().item<bool>());
}

// bf16 rounds differently on every layout: the loss agrees to its three digits.
RANK_TEST(TensorParallel, LowPrecisionIsClose, 2) {
  const Group group = rank.group("tensor");
  const GptOptions options = small_gpt(7, 7);
  const Microbatch batch = token_batch(options, Tokens::kSomeIgnored);
  const NumericTypes types = {at::kBFloat16, at::kFloat};
  TestModel single(options, {}, types), split(options, {.tensor = axis_of(group)}, types);
  const double expected = single.train(batch);
  EXPECT_NEAR(split.train(batch), expected, 0.003 * expected);
  sum_partial_gradients(split.arena(), group);
  const Comparison comparison = compare_gradients(split.arena(), single.arena(), group, 0.1);
  EXPECT_LE(comparison.worst, 1) << comparison.name;
}

// The head alone, on logits from -1e4 to 1e4.
RANK_TEST(TensorParallel, HeadIsExactWithExtremeLogits, 2, 3) {
  const Group group = rank.group("tensor");
  constexpr std::int64_t kTokens = 600, kDim = 8, kVocabulary = 20003;  // three chunks
  ParameterSpec spec;
  spec.name = "weight";
  spec.shape = {kVocabulary, kDim};
  spec.initializer = Initializer::normal(1);
  Arena whole({&spec, 1}, {at::kDouble, at::kDouble}, Group());
  const IndexRange rows = even_split(kVocabulary, rank.index(), rank.size());
  spec.slice = Slice{0, rows.first, rows.end()};
  Arena slice({&spec, 1}, {at::kDouble, at::kDouble}, Group());
  whole.initialize(1);
  slice.initialize(1);
  spec.slice.reset();
  spec.name = "input";
  spec.shape = {kTokens, kDim};
  spec.initializer = Initializer::normal(700);
  const at::Tensor input = initial_values(spec, 2);
  const at::Tensor targets = at::arange(kTokens, at::kLong).mul(22);
  targets.narrow(0, 200, 300).fill_(-100);  // a whole chunk of them

  Parameter& held = slice.parameter("weight");
  const VocabularyCut cut{axis_of(group), kVocabulary, 0};
  const HeadLoss expected =
      differentiate_head(input, whole.parameter("weight"), targets, 2, LogitChunks::kOnHost);
  const HeadLoss found = differentiate_split_head(input, held, targets, 2, cut);
  EXPECT_NEAR((found.sum / expected.sum).item<double>(), 1, 1e-13);
  EXPECT_TRUE(evaluate_split_head(input, held, targets, cut).sum.equal(found.sum));
  EXPECT_TRUE(held.gradient().allclose(
      whole.parameter("weight").gradient().narrow(0, rows.first, rows.count), 1e-11, 1e-11));
  group.all_reduce(found.input_gradient, ReduceOp::kSum, Rank::call("input gradient")).wait();
  EXPECT_TRUE(found.input_gradient.allclose(expected.input_gradient, 1e-11, 1e-11));
}

}  // namespace
}  // namespace troika::test
