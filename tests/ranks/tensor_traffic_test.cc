// What a GPT puts on the wire over the tensor axis, layer by layer, as docs/parallelism.md states
// it, read from the flight recorder.
#include <troika/observe/recorder.h>

#include <numeric>

#include "ranks/tensor_model.h"

namespace troika::test {
namespace {

// An operation of a step: a gather or a reduction of all tokens, or numbers of the softmax.
struct Expected {
  std::string operation;
  std::string label;
  friend bool operator==(const Expected&, const Expected&) = default;
};

std::ostream& operator<<(std::ostream& out, const Expected& expected) {
  return out << expected.operation << " \"" << expected.label << "\"";
}

class Steps {
 public:
  void gather(const std::string& what) { add("all_gather", what); }
  void scatter(const std::string& what) { add("reduce_scatter", what); }
  void add(const std::string& operation, const std::string& what) {
    all.push_back({operation, what + ", microbatch 2"});
  }
  std::vector<Expected> all;
};

void add_block_forward(Steps& steps, const std::string& layer) {
  steps.gather(layer + "attention input");
  steps.scatter(layer + "attention output");
  steps.gather(layer + "feed-forward input");
  steps.scatter(layer + "feed-forward output");
}

void add_block_backward(Steps& steps, const std::string& layer) {
  steps.gather(layer + "feed-forward output gradient");
  steps.scatter(layer + "feed-forward input gradient");
  steps.gather(layer + "attention output gradient");
  steps.scatter(layer + "attention input gradient");
  steps.gather(layer + "feed-forward input again");
  steps.gather(layer + "attention input again");
}

std::vector<Expected> operations_of(ActivationCheckpoint checkpoint) {
  Steps steps;
  steps.scatter("embedding rows");
  add_block_forward(steps, "layer 0 ");
  add_block_forward(steps, "layer 1 ");
  steps.gather("head input");
  steps.gather("head softmax of the vocabulary");
  steps.scatter("head input gradient");
  for (const std::string layer : {"layer 1 ", "layer 0 "}) {
    if (checkpoint == ActivationCheckpoint::kFull) add_block_forward(steps, layer);
    add_block_backward(steps, layer);
  }
  steps.gather("embedding output gradient");
  return steps.all;
}

Group recorded_group(const Rank& rank) {
  EngineOptions options = rank.options();
  options.observers.recorder =
      Recorder::create(recorder_path(rank.folder(), rank.index()), rank.index(), "here");
  std::vector<int> ranks(static_cast<std::size_t>(rank.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_group("tensor", ranks, rank.index(), options);
}

// What differs between the layers' operations is the label alone: each moves (n - 1) / n of all
// tokens x dim, whatever the layer's inner width, the heads and the vocabulary.
void expect_bytes(const RecordedOperation& operation, std::uint64_t ranks, std::int64_t tokens,
                  std::int64_t dim) {
  const bool softmax = operation.label.find("softmax") != std::string::npos;
  const std::int64_t numbers = softmax ? 3 * static_cast<std::int64_t>(ranks) : dim;
  const auto all = static_cast<std::uint64_t>(tokens * numbers) * sizeof(double);
  EXPECT_EQ(operation.sent, (ranks - 1) * all / ranks) << operation.label;
  EXPECT_LE(operation.label.size(), 64u);
}

void expect_traffic(const Rank& rank, const Group& group, ActivationCheckpoint checkpoint) {
  const ModelRecipe recipe = small_gpt(7, 1);
  const Microbatch batch = token_batch(recipe, Tokens::kPlain, 4);  // 148 tokens: even shares
  TestModel model(recipe, {.tensor = {group, Seconds(30)}, .checkpoint = checkpoint});
  const auto path = recorder_path(rank.folder(), rank.index());
  const std::size_t before = read_recorder(path).operations.size();
  (void)model.train(batch);
  const auto operations = read_recorder(path).operations;
  std::vector<Expected> found;
  for (std::size_t i = before; i < operations.size(); ++i) {
    found.push_back({operations[i].operation, operations[i].label});
    expect_bytes(operations[i], static_cast<std::uint64_t>(rank.size()), batch.inputs.numel(),
                 recipe.dim);
  }
  EXPECT_EQ(found, operations_of(checkpoint));
}

RANK_FUNCTION(bytes_of_a_microbatch) {
  const Group group = recorded_group(rank);
  for (const auto checkpoint : {ActivationCheckpoint::kNone, ActivationCheckpoint::kSelective,
                                ActivationCheckpoint::kFull}) {
    expect_traffic(rank, group, checkpoint);
  }
}

TEST(TensorTraffic, OfSharedMemory) {
  for (const int size : {2, 4}) {
    expect_ranks("bytes_of_a_microbatch", size, {.engine = EngineKind::kShm});
  }
}

TEST(TensorTraffic, OfMessages) {
  expect_ranks("bytes_of_a_microbatch", 2, {.engine = EngineKind::kGloo});
}

}  // namespace
}  // namespace troika::test
