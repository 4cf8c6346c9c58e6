#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/random.h>
#include <troika/data/find_files.h>
#include <troika/data/packed_dataset.h>
#include <troika/data/prepare.h>
#include <troika/data/text_documents.h>
#include <troika/data/token_documents.h>

#include <algorithm>

namespace troika {
namespace {

using Sources = std::vector<std::shared_ptr<const DocumentSource>>;
using Sides = std::vector<std::unique_ptr<const PackedDocuments>>;

// Held-out samples come in one order, whatever the run's seed.
constexpr std::uint64_t kHeldOutSeed = 0;

std::span<std::int64_t> row(const at::Tensor& matrix, std::int64_t index) {
  if (!matrix.defined()) return {};
  const auto length = static_cast<std::size_t>(matrix.size(1));
  return {matrix.mutable_data_ptr<std::int64_t>() + index * matrix.size(1), length};
}

// The files of each source: one source a path when the paths have weights, else one of all.
std::vector<std::vector<FoundFile>> files_of_sources(const DataRecipe& data,
                                                     std::vector<std::string>& warnings) {
  FileSearch search = find_files(data.paths);
  if (!search.left_out.empty()) warnings.push_back(describe_left_out(search));
  std::vector<std::vector<FoundFile>>& lists = search.files;
  if (!data.weights.empty()) return std::move(lists);
  std::vector<FoundFile> all;
  for (std::vector<FoundFile>& list : lists) {
    all.insert(all.end(), std::make_move_iterator(list.begin()),
               std::make_move_iterator(list.end()));
  }
  std::sort(all.begin(), all.end(),
            [](const FoundFile& a, const FoundFile& b) { return a.path < b.path; });
  return {std::move(all)};
}

// What to write into the recipe for shards in this file's folder, made by the tokenizer with this
// fingerprint.
std::string advice_on_tokenizer(const std::string& shard, std::uint64_t made_by) {
  if (made_by == open_tokenizer("bytes")->fingerprint()) return "write tokenizer = \"bytes\"";
  const std::string beside = (std::filesystem::path(shard).parent_path() / kTokenizerFile).string();
  bool made_them = false;
  try {
    made_them = open_tokenizer(beside)->fingerprint() == made_by;
  } catch (const DataError&) {
    made_them = false;  // there is none
  }
  if (made_them) return "write tokenizer = \"" + beside + "\", which made them";
  return "give the model file that the shards were made with: `troika data prepare` puts it beside "
         "them, as tokenizer.model";
}

// Shards know which tokenizer made them; 0 is one of another program.
void check_tokenizer(const DocumentSource& source, const std::string& shard, const DataRecipe& data,
                     const Tokenizer& tokenizer) {
  const std::uint64_t made_by = source.tokenizer();
  if (made_by == 0 || made_by == tokenizer.fingerprint()) return;
  throw DataError("the token shard " + shown_path(shard) +
                      " was not made by data.tokenizer = " + shown_path(data.tokenizer),
                  advice_on_tokenizer(shard, made_by));
}

Sources open_sources(const DataRecipe& data, std::vector<std::string>& warnings) {
  Sources sources;
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(data.tokenizer);
  for (std::vector<FoundFile>& files : files_of_sources(data, warnings)) {
    if (data.kind == DataKind::kTokens) {
      sources.push_back(open_token_documents(files));
      check_tokenizer(*sources.back(), files.front().path, data, *tokenizer);
    } else if (data.tokenizer == "bytes") {
      sources.push_back(open_byte_documents(std::move(files)));
    } else {
      sources.push_back(open_tokenized_documents(std::move(files), *tokenizer));
    }
    const DocumentSource &first = *sources.front(), &last = *sources.back();
    if (last.tokenizer() != first.tokenizer() || last.separator() != first.separator()) {
      throw DataError(
          first.describe(0) + " and " + last.describe(0) + " were made by different tokenizers",
          "prepare them again with the same --tokenizer");
    }
  }
  return sources;
}

class PackedDataset final : public Dataset {
 public:
  PackedDataset(const DataRecipe& data, const ModelRecipe& model, std::uint64_t seed)
      : sources_(open_sources(data, warnings_)),
        options_{data.pack, model.seq_len, model.vocab_size, data.held_out_fraction} {
    for (const auto& source : sources_) {
      check_vocabulary(*source, model.vocab_size);
      if (!source->warning().empty()) warnings_.push_back(source->warning());
    }
    open_train_side(data, seed);
    open_held_out_side();
  }

  [[nodiscard]] std::int64_t samples(Split split) const override {
    std::int64_t total = 0;
    for (const auto& side : sides(split)) total += side->samples();
    return total;
  }
  [[nodiscard]] SampleRef at(Split split, std::int64_t ordinal) const override;
  [[nodiscard]] Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                      std::int64_t step) const override;
  [[nodiscard]] std::string fingerprint() const override;
  [[nodiscard]] std::optional<double> bytes_per_token() const override;
  [[nodiscard]] DatasetFacts facts() const override;
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }

 private:
  [[nodiscard]] const Sides& sides(Split split) const {
    return split == Split::kTrain ? train_ : held_out_;
  }
  void open_train_side(const DataRecipe& data, std::uint64_t seed);
  void open_held_out_side();

  std::vector<std::string> warnings_;
  Sources sources_;
  PackOptions options_;
  Sides train_;
  Sides held_out_;
  std::optional<Sampler> sampler_;
  std::optional<Permutation> held_out_order_;
};

void PackedDataset::open_train_side(const DataRecipe& data, std::uint64_t seed) {
  std::vector<std::int64_t> sizes;
  for (std::size_t k = 0; k < sources_.size(); ++k) {
    train_.push_back(std::make_unique<PackedDocuments>(sources_[k], options_, Split::kTrain));
    sizes.push_back(train_.back()->samples());
    if (sizes.back() > 0) continue;
    const std::string which = data.weights.empty() ? "data.paths" : shown_path(data.paths[k]);
    const std::int64_t documents = sources_[k]->documents();
    throw DataError("nothing of " + which + " is left to train on: the held-out split takes " +
                        (documents == 1 ? "its only document"
                                        : "all its " + std::to_string(documents) + " documents"),
                    "set data.held_out_fraction lower, or to 0");
  }
  const std::vector<double> one_source = {1.0};
  sampler_.emplace(seed, sizes, data.weights.empty() ? one_source : data.weights);
}

void PackedDataset::open_held_out_side() {
  if (options_.held_out_fraction <= 0) return;
  for (const auto& source : sources_) {
    held_out_.push_back(std::make_unique<PackedDocuments>(source, options_, Split::kHeldOut));
  }
  const std::int64_t total = samples(Split::kHeldOut);
  if (total > 0) {
    held_out_order_.emplace(stream_key(kHeldOutSeed, "data.held_out"), total);
    return;
  }
  std::int64_t documents = 0;
  for (const auto& source : sources_) documents += source->documents();
  warnings_.push_back("no document is held out: data.held_out_fraction is too small for " +
                      std::to_string(documents) + (documents == 1 ? " document" : " documents") +
                      ", so evaluation is off");
}

SampleRef PackedDataset::at(Split split, std::int64_t ordinal) const {
  if (split == Split::kTrain) return sampler_->at(ordinal);
  check(ordinal >= 0 && ordinal < samples(split), "a held-out sample that is not there");
  SampleRef sample{0, 0, held_out_order_->at(0, ordinal), ordinal};
  for (const auto& side : held_out_) {
    if (sample.index < side->samples()) break;
    sample.index -= side->samples();
    ++sample.source;
  }
  return sample;
}

Microbatch PackedDataset::microbatch(Split split, std::span<const SampleRef> samples,
                                     std::int64_t step) const {
  const auto count = static_cast<std::int64_t>(samples.size());
  Microbatch batch;
  batch.step = step;
  batch.inputs = at::empty({count, options_.seq_len}, at::kLong);
  batch.targets = at::empty({count, options_.seq_len}, at::kLong);
  batch.sample_ids = at::empty({count}, at::kLong);
  if (options_.pack == Pack::kIsolated) {
    batch.document_ids = at::empty({count, options_.seq_len}, at::kLong);
  }
  auto* ids = batch.sample_ids.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const SampleRef& sample = samples[static_cast<std::size_t>(i)];
    ids[i] = sample.ordinal;
    batch.valid += sides(split)[static_cast<std::size_t>(sample.source)]->fill(
        sample.index, {row(batch.inputs, i), row(batch.targets, i), row(batch.document_ids, i)});
  }
  return batch;
}

std::string PackedDataset::fingerprint() const {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t value) { hash = mix_bits(hash ^ value) + value; };
  for (const auto& source : sources_) {
    add(static_cast<std::uint64_t>(source->documents()));
    add(source->tokenizer());
    for (std::int64_t document = 0; document < source->documents(); ++document) {
      add(source->key(document));
      add(static_cast<std::uint64_t>(source->length(document)));
    }
  }
  return hex(hash);
}

std::optional<double> PackedDataset::bytes_per_token() const {
  double bytes = 0, targets = 0;
  for (const auto& side : sides(held_out_order_ ? Split::kHeldOut : Split::kTrain)) {
    bytes += side->text_bytes();
    targets += static_cast<double>(side->targets());
  }
  if (bytes <= 0 || targets <= 0) return std::nullopt;
  return bytes / targets;
}

DatasetFacts PackedDataset::facts() const {
  DatasetFacts facts;
  for (const Split split : {Split::kTrain, Split::kHeldOut}) {
    for (const auto& side : sides(split)) {
      facts.documents += side->documents();
      facts.tokens += side->targets();
      facts.text_bytes += side->text_bytes();
      if (split == Split::kHeldOut) facts.held_out_documents += side->documents();
    }
  }
  return facts;
}

}  // namespace

std::unique_ptr<Dataset> open_packed_dataset(const DataRecipe& data, const ModelRecipe& model,
                                             std::uint64_t seed) {
  // validate() has told the user.
  check(!data.paths.empty(), "data.paths is empty");
  check(data.weights.empty() || data.weights.size() == data.paths.size(),
        "data.weights does not go with data.paths");
  return std::make_unique<PackedDataset>(data, model, seed);
}

}  // namespace troika
