// Embeddings of words (CBOW with negative samples, Mikolov et al. 2013) on parameter servers: a
// word is predicted from its four neighbours. There is no list of words: a row is made on a
// server when one is first seen, and ranks pull and push the rows of their samples alone,
// without waiting for each other.
//
//   troika launch --ranks 2 -- own_servers FOLDER [STEPS]   # of text; STEPS is 400
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/server/server_steps.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kColumns = 32, kSide = 2, kNegatives = 5, kBatch = 1024;
constexpr std::uint64_t kPrime = 2654435761;  // takes samples from all over the text

struct Text {
  std::vector<std::int64_t> words;  // by place, as hashes
  std::map<std::int64_t, std::pair<std::string, int>> names;
};

// Returns the words of all files, in the order of their paths. Words are numbers from their letters
// (FNV-1a), the same ones on every rank.
Text read_text(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  Text text;
  for (const auto& path : files) {
    std::ifstream file(path);
    std::string word;
    for (char letter = 0; file.get(letter);) {
      if (std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_') {
        word += letter;
        continue;
      }
      if (word.empty()) continue;
      std::uint64_t hash = 14695981039346656037U;
      for (const char each : word)
        hash = (hash ^ static_cast<unsigned char>(each)) * 1099511628211U;
      const auto id = static_cast<std::int64_t>(hash);
      text.words.push_back(id);
      auto& [name, count] = text.names[id];
      name = word;
      ++count;
      word.clear();
    }
  }
  if (std::ssize(text.words) < 100) throw troika::DataError("no text in " + folder.string());
  return text;
}

// Neighbours [count, 2 kSide], and the word itself before kNegatives others [count, 1 +
// kNegatives].
std::pair<torch::Tensor, torch::Tensor> batch_of(const Text& text, std::int64_t first,
                                                 std::int64_t count) {
  const auto places = static_cast<std::uint64_t>(std::ssize(text.words) - 2 * kSide);
  std::vector<std::int64_t> neighbours, words;
  for (std::int64_t sample = first; sample < first + count; ++sample) {
    const auto draw = static_cast<std::uint64_t>(sample) * kPrime;
    const auto at = static_cast<std::int64_t>(draw % places) + kSide;
    for (std::int64_t i = -kSide; i <= kSide; ++i) {
      if (i != 0) neighbours.push_back(text.words[static_cast<std::size_t>(at + i)]);
    }
    words.push_back(text.words[static_cast<std::size_t>(at)]);
    for (std::uint64_t i = 1; i <= kNegatives; ++i) {
      words.push_back(
          text.words[static_cast<std::size_t>((draw / 7 + i * 7919 * kPrime) % places)]);
    }
  }
  return {torch::tensor(neighbours).view({count, 2 * kSide}),
          torch::tensor(words).view({count, 1 + kNegatives})};
}

void print_nearest(const Text& text, const troika::ServerTable& table) {
  std::vector<std::pair<int, std::int64_t>> by_count;
  for (const auto& [id, name] : text.names) by_count.emplace_back(name.second, id);
  std::ranges::sort(by_count, std::greater());
  by_count.resize(std::min<std::size_t>(by_count.size(), 1000));
  std::vector<std::int64_t> ids;
  for (const auto& [count, id] : by_count) ids.push_back(id);
  const torch::NoGradGuard no_grad;
  const torch::Tensor rows = torch::nn::functional::normalize(
      table.lookup(torch::tensor(ids)), torch::nn::functional::NormalizeFuncOptions().dim(1));
  for (std::int64_t word = 0; word < std::min<std::int64_t>(rows.size(0), 8); ++word) {
    const torch::Tensor nearest = std::get<1>(rows.mv(rows[word]).topk(4));
    std::cout << text.names.at(ids[static_cast<std::size_t>(word)]).first << ":";
    for (std::int64_t i = 1; i < 4; ++i) {
      const auto place = static_cast<std::size_t>(nearest[i].item<std::int64_t>());
      std::cout << " " << text.names.at(ids[place]).first;
    }
    std::cout << std::endl;
  }
}

void train(const std::filesystem::path& folder, std::int64_t steps) {
  const auto session = troika::Session::from_environment();
  const Text text = read_text(folder);
  torch::nn::Linear mix(kColumns, kColumns);

  troika::ServerStepsOptions options;
  options.steps = steps;
  options.batch_size = kBatch;
  options.servers = session.size();  // each rank keeps a part of the rows
  options.staleness = std::nullopt;  // and waits for none
  options.optimizer.lr = 0.05;
  options.optimizer.kind = troika::Chosen<troika::OptimizerKind>::named("sgd");
  troika::ServerSteps sync(mix, session, options);
  const troika::ServerTable context = sync.table({.name = "context", .columns = kColumns});
  const troika::ServerTable target = sync.table({.name = "target", .columns = kColumns});

  double loss_sum = 0;
  int passes = 0;
  while (const auto samples = sync.next()) {
    const auto [neighbours, words] = batch_of(text, samples->first, samples->count);
    const torch::Tensor mean = mix(context.lookup(neighbours).mean(1));  // [count, columns]
    const torch::Tensor scores = target.lookup(words).matmul(mean.unsqueeze(2));  // [count, 6, 1]
    torch::Tensor labels = torch::zeros_like(scores);
    labels.select(1, 0).fill_(1);
    const torch::Tensor loss = torch::binary_cross_entropy_with_logits(scores, labels);
    loss.backward();
    sync.step();
    loss_sum += loss.item<double>();
    if (++passes % 50 == 0 && session.rank() == 0) {
      std::cout << "step " << samples->step << ": loss " << loss_sum / 50 << std::endl;
      loss_sum = 0;
    }
  }
  if (session.rank() == 0) {
    std::cout << text.words.size() << " words, " << text.names.size()
              << " of them different; rank 0 sent " << sync.traffic().sent / 1000000
              << " MB and received " << sync.traffic().received / 1000000 << " MB" << std::endl;
    std::cout << "staleness of its updates:";
    for (const auto& [staleness, count] : sync.staleness()) {
      std::cout << " " << staleness << " (" << count << " times)";
    }
    std::cout << std::endl;
    print_nearest(text, context);
  }
  sync.close();
  session.leave();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw troika::UsageError("own_servers FOLDER [STEPS]");
    train(argv[1], argc > 2 ? std::stoll(argv[2]) : 400);
  } catch (const troika::Error& error) {
    std::cerr << "own_servers: " << error.what() << std::endl;
    return static_cast<int>(error.code());
  }
}
