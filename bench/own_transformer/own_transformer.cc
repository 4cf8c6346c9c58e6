// Times a transformer of the user's own modules under DataParallel, as a program that predicts the
// next token trains it: own_transformer STEPS fp32|bf16 [--no-reuse] [--no-fused-loss]. Rank 0
// prints one line of JSON. The peer is bench/peers/ddp_transformer.py, with the same modules in the
// same order, and so the same initial values.
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/time.h>
#include <troika/nn/autocast.h>
#include <troika/nn/cross_entropy_head.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/train/tensor_memory.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kDim = 384, kHeads = 6, kLayers = 6, kWords = 50304, kLength = 256;
constexpr std::int64_t kSamples = 4;  // of a rank

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    first_norm =
        register_module("first_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})));
    attention = register_module("attention", torch::nn::Linear(kDim, 3 * kDim));
    projection = register_module("projection", torch::nn::Linear(kDim, kDim));
    second_norm =
        register_module("second_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})));
    wide = register_module("wide", torch::nn::Linear(kDim, 4 * kDim));
    narrow = register_module("narrow", torch::nn::Linear(4 * kDim, kDim));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads = [](const torch::Tensor& part) {
      return part.unflatten(-1, {kHeads, kDim / kHeads}).transpose(1, 2);
    };
    const auto parts = attention(first_norm(x)).chunk(3, -1);
    const torch::Tensor attended = torch::scaled_dot_product_attention(
        heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.0, /*is_causal=*/true);
    const torch::Tensor hidden = x + projection(attended.transpose(1, 2).flatten(2));
    return hidden + narrow(torch::gelu(wide(second_norm(hidden))));
  }
  torch::nn::LayerNorm first_norm{nullptr}, second_norm{nullptr};
  torch::nn::Linear attention{nullptr}, projection{nullptr}, wide{nullptr}, narrow{nullptr};
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(bool fuses) : fuses_loss(fuses) {
    words = register_module("words", torch::nn::Embedding(kWords, kDim));
    places = register_module("places", torch::nn::Embedding(kLength, kDim));
    for (int i = 0; i < kLayers; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})));
    head = register_module("head",
                           torch::nn::Linear(torch::nn::LinearOptions(kDim, kWords).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& targets) {
    torch::Tensor hidden = words(ids) + places(torch::arange(kLength));
    for (const auto& block : *blocks) hidden = block->as<Block>()->forward(hidden);
    hidden = norm(hidden);
    if (fuses_loss) return troika::cross_entropy_head(hidden, head->weight, targets);
    return torch::cross_entropy_loss(head(hidden).flatten(0, 1), targets.flatten());
  }
  bool fuses_loss;
  torch::nn::Embedding words{nullptr}, places{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

double since(troika::Clock::time_point begin) {
  return troika::Seconds(troika::Clock::now() - begin).count();
}

std::string list(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

void run(int steps, bool narrow, bool reuses, bool fuses) {
  if (reuses) troika::reuse_tensor_memory();
  const auto session = troika::Session::from_environment();
  torch::manual_seed(1337);
  Transformer net(fuses);
  troika::DataParallel model(net, session);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  torch::manual_seed(1337 + session.rank());
  std::vector<torch::Tensor> batches;
  for (int i = 0; i < steps; ++i) {
    batches.push_back(torch::randint(kWords, {kSamples, kLength + 1}, torch::kLong));
  }
  std::vector<double> seconds, losses;
  session.world().barrier({"bench", session.deadline()}).wait();
  const auto begin = troika::Clock::now();
  for (const torch::Tensor& tokens : batches) {
    const auto step_begin = troika::Clock::now();
    if (reuses) troika::begin_memory_step();
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      std::optional<troika::Autocast> autocast;
      if (narrow) autocast.emplace(at::kBFloat16, at::kCPU);
      loss = model(tokens.narrow(1, 0, kLength).contiguous(),
                   tokens.narrow(1, 1, kLength).contiguous());
    }
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
    losses.push_back(loss.item<double>());
    if (reuses) troika::end_memory_step();
    seconds.push_back(since(step_begin));
  }
  if (session.rank() == 0) {
    std::int64_t parameters = 0;
    for (const torch::Tensor& each : net->parameters()) parameters += each.numel();
    std::cout << R"({"step_seconds": )" << list(seconds) << R"(, "losses": )" << list(losses)
              << R"(, "seconds": )" << since(begin) << R"(, "parameters": )" << parameters
              << R"(, "targets_per_step": )" << kSamples * kLength * session.size() << "}"
              << std::endl;
  }
  session.leave();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() < 2) {
      throw troika::UsageError("own_transformer STEPS fp32|bf16 [--no-reuse] [--no-fused-loss]");
    }
    const auto has = [&](const char* word) { return std::ranges::count(words, word) > 0; };
    run(std::stoi(words[0]), words[1] == "bf16", !has("--no-reuse"), !has("--no-fused-loss"));
  } catch (const troika::Error& error) {
    std::cerr << "own_transformer: " << error.what() << std::endl;
    return static_cast<int>(error.code());
  }
}
