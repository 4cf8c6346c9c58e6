// What a GPT puts on the wire over the tensor axis, layer by layer, as docs/parallelism.md states
// it, read from the flight recorder.
#include <troika/observe/recorder.h>
#include <troika/sync/gradients/data_axis.h>

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
    all.push_back({operation, what + ", microbatch 2 (stage 0)"});
  }
  std::vector<Expected> all;
};

void add_block_forward(Steps& steps, const std::string& layer) {
  steps.gather(layer + "attention input");
  steps.scatter(layer + "attention output");
  steps.gather(layer + "feed-forward input");
  steps.scatter(layer + "feed-forward output");
}

void add_block_backward_input(Steps& steps, const std::string& layer) {
  steps.gather(layer + "feed-forward output gradient");
  steps.scatter(layer + "feed-forward input gradient");
  steps.gather(layer + "attention output gradient");
  steps.scatter(layer + "attention input gradient");
}

void add_block_backward_weight(Steps& steps, const std::string& layer) {
  steps.gather(layer + "feed-forward input again");
  steps.gather(layer + "attention input again");
}

Steps forward_pass() {
  Steps steps;
  steps.scatter("embedding rows");
  add_block_forward(steps, "layer 0 ");
  add_block_forward(steps, "layer 1 ");
  steps.gather("head input");
  steps.gather("head softmax of the vocabulary");
  return steps;
}

// Input and weight gradients of each block in turn, or all weight gradients at the end.
enum class Halves { kTogether, kApart };

std::vector<Expected> operations_of(ActivationCheckpoint checkpoint, Halves halves) {
  Steps steps = forward_pass();
  steps.scatter("head input gradient");
  for (const std::string layer : {"layer 1 ", "layer 0 "}) {
    if (checkpoint == ActivationCheckpoint::kFull) add_block_forward(steps, layer);
    add_block_backward_input(steps, layer);
    if (halves == Halves::kTogether) add_block_backward_weight(steps, layer);
  }
  steps.gather("embedding output gradient");
  if (halves == Halves::kApart) {
    for (const std::string layer : {"layer 1 ", "layer 0 "})
      add_block_backward_weight(steps, layer);
  }
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

// What a function puts on the wire.
template <class Function>
std::vector<RecordedOperation> recorded(const Rank& rank, Function function) {
  const auto path = recorder_path(rank.folder(), rank.index());
  const auto before = static_cast<std::ptrdiff_t>(read_recorder(path).operations.size());
  function();
  std::vector<RecordedOperation> operations = read_recorder(path).operations;
  operations.erase(operations.begin(), operations.begin() + before);
  return operations;
}

std::vector<Expected> names_of(const std::vector<RecordedOperation>& operations) {
  std::vector<Expected> names;
  for (const RecordedOperation& one : operations) names.push_back({one.operation, one.label});
  return names;
}

// What differs between the layers' operations is the label alone: each moves (n - 1) / n of all
// tokens x dim, whatever the layer's inner width, the heads and the vocabulary. Where slices
// differ, a message has the sender's in a gather and the receiver's in a sum; in shared memory it
// is the receiver who counts.
void expect_bytes(const RecordedOperation& operation, const Rank& rank, std::int64_t tokens,
                  std::int64_t dim) {
  const auto others = static_cast<std::int64_t>(rank.size()) - 1;
  const std::int64_t own = even_split(tokens, rank.index(), rank.size()).count;
  const bool takes = rank.options().engine == "shm";
  const bool gathers = operation.operation == "all_gather";
  std::int64_t elements = (takes == gathers ? tokens - own : others * own) * dim;
  if (operation.label.find("softmax") != std::string::npos) elements = others * 3 * tokens;
  EXPECT_EQ(operation.sent, static_cast<std::uint64_t>(elements) * sizeof(double))
      << operation.label;
  EXPECT_LE(operation.label.size(), 64u);
}

void expect_operations(const Rank& rank, const std::vector<RecordedOperation>& operations,
                       const std::vector<Expected>& expected, const Microbatch& batch,
                       std::int64_t dim) {
  EXPECT_EQ(names_of(operations), expected);
  for (const RecordedOperation& one : operations) {
    expect_bytes(one, rank, batch.tensors[0].numel(), dim);
  }
}

void expect_traffic(const Rank& rank, const Group& group, ActivationCheckpoint checkpoint) {
  const GptOptions options = small_gpt(7, 1);
  const Microbatch batch = token_batch(options, Tokens::kPlain, 4);  // 148 tokens
  TestModel model(options, {.tensor = {group, Seconds(30)}, .checkpoint = checkpoint});
  const auto trained = recorded(rank, [&] { (void)model.train(batch); });
  expect_operations(rank, trained, operations_of(checkpoint, Halves::kTogether), batch,
                    options.dim);
  const auto apart = recorded(rank, [&] { (void)model.train_apart(batch); });
  expect_operations(rank, apart, operations_of(checkpoint, Halves::kApart), batch, options.dim);
  const auto evaluated = recorded(rank, [&] { (void)model.evaluate(batch); });
  expect_operations(rank, evaluated, forward_pass().all, batch, options.dim);
}

RANK_FUNCTION(bytes_of_a_microbatch) {
  const Group group = recorded_group(rank);
  for (const auto checkpoint : {ActivationCheckpoint::kNone, ActivationCheckpoint::kSelective,
                                ActivationCheckpoint::kFull}) {
    expect_traffic(rank, group, checkpoint);
  }
}

// On 3 ranks slices of the tokens differ.
TEST(TensorTraffic, OfSharedMemory) {
  for (const int size : {2, 3, 4}) {
    expect_ranks("bytes_of_a_microbatch", size, {.engine = "shm"});
  }
}

TEST(TensorTraffic, OfMessages) {
  for (const int size : {2, 3}) {
    expect_ranks("bytes_of_a_microbatch", size, {.engine = "gloo"});
  }
}

// 8 query heads on 3 ranks: the first and the second read the same key and value head. On 2 each
// has its own.
std::int64_t elements_summed_a_step(const GptOptions& options, int ranks) {
  const std::int64_t norms_and_biases = (6 * options.layers + 2) * options.dim;
  const std::int64_t key_value_width = options.kv_heads * options.head_dim;
  const std::int64_t keys_and_values = options.layers * 2 * key_value_width * (options.dim + 1);
  return norms_and_biases + options.seq_len * options.dim + (ranks == 3 ? keys_and_values : 0);
}

RANK_FUNCTION(bytes_summed_once_a_step) {
  const Group group = recorded_group(rank);
  GptOptions options = small_gpt(8, 4);
  options.norm = Norm::kLayerNorm;
  options.position = Position::kLearned;
  options.bias = true;
  TestModel model(options, {.tensor = {group, Seconds(30)}});
  DataAxis axis(model.arena(), {.tensor = group});
  axis.begin_step(1, Seconds(30));
  (void)model.train(token_batch(options, Tokens::kPlain));
  const std::uint64_t before = group.input_bytes();
  const auto operations = recorded(rank, [&] { axis.finish(); });
  ASSERT_EQ(names_of(operations),
            std::vector<Expected>({{"all_reduce", "gradient bucket 1, tensor axis"}}));
  const std::int64_t elements = elements_summed_a_step(options, rank.size());
  EXPECT_EQ(operations[0].elements, elements);
  const auto input = static_cast<std::uint64_t>(elements) * sizeof(double);
  EXPECT_EQ(group.input_bytes() - before, input);
  // Small enough to go to all ranks at once.
  EXPECT_EQ(operations[0].sent, static_cast<std::uint64_t>(rank.size() - 1) * input);
}

TEST(TensorTraffic, OfSumsOnceAStep) {
  for (const int size : {2, 3}) {
    for (const std::string engine : {"shm", "gloo"}) {
      expect_ranks("bytes_summed_once_a_step", size, {.engine = engine});
    }
  }
}

}  // namespace
}  // namespace troika::test
