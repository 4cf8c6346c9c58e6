#include "matrix.h"

#include <sys/wait.h>
#include <troika/base/random.h>
#include <troika/data/sources/documents.h>
#include <troika/data/sources/random/random.h>
#include <troika/data/sources/tokens/shard_writer.h>
#include <troika/data/sources/tokens/tokens.h>
#include <troika/models/gpt/options.h>
#include <troika/models/mlp/options.h>
#include <troika/recipe/recipe_file.h>
#include <troika/verify/layout_text.h>
#include <troika/verify/pairwise.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace troika::test {
namespace {

constexpr std::int64_t kVocabulary = 251;
constexpr std::int64_t kSequence = 37;
// Neither 2, 3 nor 4 divides it.
constexpr std::int64_t kSamples = 11;
// Layouts of one call of the command: a command line has an end.
constexpr std::size_t kLayoutsOfACall = 200;
// c10d asks for the name of 127.0.0.1 whenever it connects to a store; where no name server answers
// that, each layout would wait five seconds for it.
constexpr const char* kNoWaitForNames = "RES_OPTIONS='timeout:1 attempts:1' ";

enum class Data { kRandom, kConcatenate, kIsolated, kPad };

// One number for each choice.
using Choices = std::vector<int>;
constexpr std::array kChoices = {2, 2, 3, 3, 2, 2, 3, 2, 4};

template <std::size_t kCount>
std::vector<Choices> product(const std::array<int, kCount>& sizes) {
  std::vector<Choices> all = {{}};
  for (const int size : sizes) {
    std::vector<Choices> longer;
    for (const Choices& choices : all) {
      for (int value = 0; value < size; ++value) {
        longer.push_back(choices);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

DataOptions data_of(Data kind, const std::filesystem::path& shards) {
  if (kind == Data::kRandom) return DataOptions(random_kind(), RandomOptions{0});
  DocumentOptions data;
  data.held_out_fraction = 0;
  data.paths = {(shards / "*.tokens").string()};
  data.pack = kind == Data::kConcatenate ? Pack::kConcatenate
              : kind == Data::kIsolated  ? Pack::kIsolated
                                         : Pack::kPad;
  return DataOptions(tokens_kind(), data);
}

Recipe base_recipe() {
  Recipe recipe;
  recipe.name = "matrix";
  recipe.seed = 5;
  recipe.train.global_batch_size = kSamples;
  recipe.train.micro_batch_size = 2;
  return recipe;
}

Recipe recipe_of(const Choices& choices, const std::filesystem::path& shards) {
  Recipe recipe = base_recipe();
  auto& model = recipe.model.as<GptOptions>();
  model.norm = static_cast<Norm>(choices[0]);
  model.position = static_cast<Position>(choices[1]);
  model.activation = static_cast<ActivationFunction>(choices[2]);
  model.bias = choices[3] == 1;
  model.qk_norm = model.qkv_bias = choices[3] == 2;
  model.dropout = choices[4] == 1 ? 0.1 : 0;
  model.tied_embeddings = choices[5] == 0;
  model.heads = choices[6] == 0 ? 7 : 3;
  model.kv_heads = choices[6] == 2 ? 3 : 1;
  model.layers = choices[7] == 0 ? 4 : 8;
  model.head_dim = 4;
  model.dim = 14;
  model.ffn_dim = 11;
  model.vocab_size = kVocabulary;
  model.seq_len = kSequence;
  recipe.data = data_of(static_cast<Data>(choices[8]), shards);
  return recipe;
}

std::string name_of_case(const Recipe& recipe) {
  const auto& model = recipe.model.as<GptOptions>();
  std::ostringstream name;
  name << name_of(model.norm) << ", " << name_of(model.position) << ", "
       << name_of(model.activation) << (model.bias ? ", bias" : "")
       << (model.qk_norm ? ", norms of q and k" : "") << (model.dropout > 0 ? ", dropout" : "")
       << (model.tied_embeddings ? ", tied" : "") << ", " << model.heads << " heads, "
       << model.kv_heads << " kv heads, " << model.layers << " layers, " << recipe.data.name();
  if (recipe.data.holds<DocumentOptions>()) {
    name << " " << name_of(recipe.data.as<DocumentOptions>().pack);
  }
  return name.str();
}

MatrixCase case_of(const Choices& choices, const std::filesystem::path& shards) {
  Recipe recipe = recipe_of(choices, shards);
  return {name_of_case(recipe), recipe, {}};
}

std::vector<Choices> pairwise_models() {
  const std::vector<Choices> all = product(kChoices);
  std::vector<Choices> models;
  for (const std::size_t i : pairwise_subset(all)) models.push_back(all[i]);
  return models;
}

// Every layout of any of the pairwise models, each with one of those that can have it, in turn.
std::vector<MatrixCase> cases_of_all_layouts(const std::filesystem::path& shards) {
  std::vector<MatrixCase> cases;
  for (const Choices& choices : pairwise_models()) cases.push_back(case_of(choices, shards));
  std::map<std::string, std::map<std::size_t, TrialLayout>> models_of;
  for (std::size_t m = 0; m < cases.size(); ++m) {
    for (const TrialLayout& layout : all_layouts(cases[m].recipe, kMostRanks)) {
      models_of[describe(layout, cases[m].recipe)].emplace(m, layout);
    }
  }
  std::size_t next = 0;
  for (const auto& [text, models] : models_of) {
    auto found = models.lower_bound(next++ % cases.size());
    if (found == models.end()) found = models.begin();
    cases[found->first].layouts.push_back(found->second);
  }
  return cases;
}

std::string read_log(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string list_of(const MatrixCase& one, std::size_t first, std::size_t end) {
  std::string list;
  for (std::size_t i = first; i < end; ++i) list += describe(one.layouts[i], one.recipe) + ";";
  return list;
}

// Adds what one call of the command finds.
void verify_some(const MatrixCase& one, std::size_t first, std::size_t end,
                 const std::filesystem::path& folder, std::vector<std::string>& failures) {
  const std::filesystem::path recipe = folder / "recipe.toml", out = folder / "found.json",
                              log = folder / "log";
  std::ofstream(recipe) << to_toml(one.recipe);
  const std::string command = kNoWaitForNames + std::string(TROIKA_COMMAND) + " verify " +
                              recipe.string() + " --json --ranks " + std::to_string(kMostRanks) +
                              " --layouts '" + list_of(one, first, end) + "' > " + out.string() +
                              " 2> " + log.string() + " < /dev/null";
  const int status = std::system(command.c_str());
  const auto found = nlohmann::json::parse(read_log(out), nullptr, false);
  if (!found.is_object()) throw std::runtime_error("failed: " + command + "\n" + read_log(log));
  for (const auto& layout : found.at("layouts")) {
    if (layout.at("agrees").get<bool>()) continue;
    failures.push_back(one.name + ": " + layout.dump());
  }
  if (found.at("layouts").size() < end - first) {
    throw std::runtime_error("layouts were left out: " + command);
  }
  const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (ended_well != found.at("agree").get<bool>()) {
    throw std::runtime_error("the exit status does not fit what was found: " + command);
  }
}

// A shard of documents with these many tokens.
void write_shard(const std::filesystem::path& folder, const std::vector<std::uint64_t>& lengths) {
  std::filesystem::create_directories(folder);
  TokenShardHeader header;
  header.vocab_size = kVocabulary;
  header.separator = kVocabulary - 1;
  ShardWriter writer(folder / "matrix.tokens", header);
  const RandomStream stream(stream_key(3, "tokens"));
  std::uint64_t drawn = 0;
  for (const std::uint64_t length : lengths) {
    std::vector<std::int32_t> ids(length);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(stream.below(++drawn, kVocabulary));
    writer.add_tokens(ids);
    writer.end_document(stream.bits(++drawn), length);
  }
  writer.finish();
}

}  // namespace

void write_shards(const std::filesystem::path& folder) {
  const RandomStream stream(stream_key(3, "lengths"));
  std::vector<std::uint64_t> lengths;
  for (std::uint64_t i = 0; i < 300; ++i) {
    lengths.push_back(i % 3 == 0 ? 2 + stream.below(i, 60) : 1);
  }
  write_shard(folder, lengths);
  // Samples of nothing but ends of documents, after which no target counts; and some that have
  // some.
  lengths.assign(4 * kSequence, 0);
  lengths.insert(lengths.end(), 4, kSequence - 1);
  write_shard(folder / "mostly-empty", lengths);
}

std::vector<MatrixCase> pairwise_matrix(const std::filesystem::path& shards) {
  std::vector<MatrixCase> cases;
  std::vector<std::vector<int>> rows;
  std::vector<std::pair<std::size_t, TrialLayout>> candidates;
  for (const Choices& choices : pairwise_models()) {
    cases.push_back(case_of(choices, shards));
    for (TrialLayout& layout : all_layouts(cases.back().recipe, kMostRanks)) {
      std::vector<int> row = choices;
      for (const int setting : settings_of(layout, cases.back().recipe)) row.push_back(setting);
      rows.push_back(std::move(row));
      candidates.emplace_back(cases.size() - 1, std::move(layout));
    }
  }
  for (const std::size_t i : pairwise_subset(rows)) {
    cases[candidates[i].first].layouts.push_back(candidates[i].second);
  }
  std::erase_if(cases, [](const MatrixCase& one) { return one.layouts.empty(); });
  return cases;
}

std::vector<MatrixCase> complete_matrix(const std::filesystem::path& shards) {
  std::vector<MatrixCase> cases = cases_of_all_layouts(shards);
  constexpr std::size_t kLayoutsOfAModel = 6;
  int models = 0;
  std::size_t next = 0;
  for (Choices& choices : product(std::array{2, 2, 3, 3, 2, 2})) {
    choices.insert(choices.end(), {models % 3, 0, (models + models / 4) % 4});
    ++models;
    MatrixCase one = case_of(choices, shards);
    const std::vector<TrialLayout> few = pairwise_layouts(one.recipe, kMostRanks);
    for (std::size_t i = 0; i < kLayoutsOfAModel; ++i) {
      one.layouts.push_back(few[next++ * 7 % few.size()]);
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

MatrixCase mlp_case() {
  MatrixCase one{"mlp", base_recipe(), {}};
  one.recipe.model =
      ModelOptions(mlp_kind(), MlpOptions{6, {8, 5, 9, 7, 4, 6, 5}, 3, ActivationFunction::kTanh});
  one.recipe.data = DataOptions::named("random");
  one.layouts = pairwise_layouts(one.recipe, 4);
  return one;
}

MatrixCase case_without_targets(const std::filesystem::path& shards) {
  MatrixCase one = case_of(Choices(kChoices.size(), 0), shards);
  one.recipe.data = data_of(Data::kIsolated, shards / "mostly-empty");
  one.recipe.train.global_batch_size = 5;
  one.name = name_of_case(one.recipe) + ", ranks without targets";
  for (TrialLayout& layout : pairwise_layouts(one.recipe, kMostRanks)) {
    if (layout.parallel.data == 4) one.layouts.push_back(std::move(layout));
  }
  return one;
}

std::vector<std::string> verify(const MatrixCase& one, const std::filesystem::path& folder) {
  std::vector<std::string> failures;
  for (std::size_t first = 0; first < one.layouts.size(); first += kLayoutsOfACall) {
    const std::size_t end = std::min(first + kLayoutsOfACall, one.layouts.size());
    verify_some(one, first, end, folder, failures);
  }
  return failures;
}

}  // namespace troika::test
