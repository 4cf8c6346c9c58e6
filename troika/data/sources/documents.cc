#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/data/overlapped.h>
#include <troika/data/sources/documents.h>
#include <troika/data/tokenizer_file.h>
#include <troika/storage/object_store.h>
#include <troika/storage/remote_file.h>

#include <algorithm>

namespace troika {
namespace {

using Sources = std::vector<std::shared_ptr<const DocumentSource>>;
using Sides = std::vector<std::unique_ptr<const PackedDocuments>>;
using FilesOfSources = std::vector<std::vector<FoundFile>>;

// Held-out samples come in one order, whatever the run's seed.
constexpr std::uint64_t kHeldOutSeed = 0;

std::span<std::int64_t> row(const at::Tensor& matrix, std::int64_t index) {
  if (!matrix.defined()) return {};
  const auto length = static_cast<std::size_t>(matrix.size(1));
  return {matrix.mutable_data_ptr<std::int64_t>() + index * matrix.size(1), length};
}

// The files of each source: one source a path when the paths have weights, else one of all.
FilesOfSources files_of_sources(const DocumentOptions& data, FileSearch search,
                                std::vector<std::string>& warnings) {
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

class PackedDataset final : public Dataset {
 public:
  // `files` are those of each source, and `warnings` what opening the sources has found.
  PackedDataset(const DocumentOptions& data, FilesOfSources files, Sources sources,
                std::vector<std::string> warnings, const SampleSpec& sample, std::uint64_t seed)
      : warnings_(std::move(warnings)),
        files_(std::move(files)),
        sources_(std::move(sources)),
        tokenizer_(tokenizer_file(data.tokenizer, sources_.front()->tokenizer())),
        options_{data.pack, sample.input().shape.front(), sample.input().range,
                 data.held_out_fraction},
        sample_(sample) {
    for (const auto& source : sources_) {
      check_pack(*source);
      check_vocabulary(*source, options_.vocab_size);
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
  [[nodiscard]] std::vector<DataFile> files() const override;
  [[nodiscard]] std::optional<double> bytes_per_token() const override;
  [[nodiscard]] DatasetFacts facts() const override;
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }

 private:
  // Shards say of themselves that they are of conversations.
  void check_pack(const DocumentSource& source) const {
    if (source.separator_is_target() || options_.pack != Pack::kConcatenate) return;
    throw DataError("data.pack = \"concatenate\" has the conversations of " + source.describe(0) +
                        " attend to each other",
                    "write pack = \"isolated\" or \"pad\"");
  }
  [[nodiscard]] const Sides& sides(Split split) const {
    return split == Split::kTrain ? train_ : held_out_;
  }
  void open_train_side(const DocumentOptions& data, std::uint64_t seed);
  void open_held_out_side();

  std::vector<std::string> warnings_;
  FilesOfSources files_;
  Sources sources_;
  std::optional<DataFile> tokenizer_;
  PackOptions options_;
  SampleSpec sample_;
  Sides train_;
  Sides held_out_;
  std::optional<Sampler> sampler_;
  std::optional<Permutation> held_out_order_;
};

void PackedDataset::open_train_side(const DocumentOptions& data, std::uint64_t seed) {
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
  const auto tokens = [&] { return at::empty({count, options_.seq_len}, at::kLong); };
  const at::Tensor inputs = tokens(), targets = tokens();
  at::Tensor document_ids;
  for (const TensorSpec& spec : sample_.tensors) {
    if (&spec == &sample_.input()) batch.tensors.add(spec.name, inputs);
    if (&spec == &sample_.target()) batch.tensors.add(spec.name, targets);
    if (spec.name != kDocumentIds || options_.pack != Pack::kIsolated) continue;
    document_ids = tokens();
    batch.tensors.add(spec.name, document_ids);
  }
  batch.sample_ids = at::empty({count}, at::kLong);
  auto* ids = batch.sample_ids.mutable_data_ptr<std::int64_t>();
  std::vector<std::int64_t> valid(samples.size());
  const auto fill = [&](std::int64_t i) {
    const auto place = static_cast<std::size_t>(i);
    const SampleRef& sample = samples[place];
    ids[i] = sample.ordinal;
    valid[place] = sides(split)[static_cast<std::size_t>(sample.source)]->fill(
        sample.index, {row(inputs, i), row(targets, i), row(document_ids, i)});
  };
  if (std::ranges::any_of(sources_, [](const auto& source) { return source->is_remote(); })) {
    run_overlapped(count, fill);
  } else {
    for (std::int64_t i = 0; i < count; ++i) fill(i);
  }
  for (const std::int64_t each : valid) batch.valid += each;
  return batch;
}

std::string PackedDataset::fingerprint() const {
  std::uint64_t hash = 0;
  bool masked = false;
  const auto add = [&hash](std::uint64_t value) { hash = mix_bits(hash ^ value) + value; };
  for (const auto& source : sources_) {
    add(static_cast<std::uint64_t>(source->documents()));
    add(source->tokenizer());
    for (std::int64_t document = 0; document < source->documents(); ++document) {
      add(source->key(document));
      add(static_cast<std::uint64_t>(source->length(document)));
    }
    if (source->has_mask()) masked = true;
  }
  if (!masked) return hex(hash);
  for (const Split split : {Split::kTrain, Split::kHeldOut}) {
    for (const auto& side : sides(split)) add(static_cast<std::uint64_t>(side->targets()));
  }
  return hex(hash);
}

std::vector<DataFile> PackedDataset::files() const {
  std::vector<DataFile> all;
  for (std::size_t k = 0; k < sources_.size(); ++k) {
    for (std::size_t i = 0; i < files_[k].size(); ++i) {
      const FoundFile& file = files_[k][i];
      all.push_back({file.path, file.size, sources_[k]->head_of_file(i)});
    }
  }
  if (tokenizer_) all.push_back(*tokenizer_);
  return all;
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

// Throws UsageError where the model needs what documents do not have, or cannot keep them apart.
void check_tensors(const DocumentOptions& data, std::string_view kind, const SampleSpec& sample,
                   const Origins& origins) {
  const bool isolates = data.pack == Pack::kIsolated;
  bool takes_documents = false;
  for (const TensorSpec& spec : sample.tensors) {
    const bool is_documents = spec.name == kDocumentIds;
    takes_documents |= is_documents;
    if (spec.optional || &spec == &sample.input() || &spec == &sample.target()) continue;
    if (is_documents && isolates) continue;
    origins.fail({"model." + spec.name, "data.kind"},
                 "the model takes " + quote(spec.name) + ", and kind = " + quote(kind) +
                     " gives tokens and those that follow them",
                 is_documents ? "write pack = \"isolated\""
                              : "the model can make it of the tokens in forward()");
  }
  if (!isolates || takes_documents) return;
  origins.fail(
      {"data.pack"},
      "pack = \"isolated\" tells the model which tokens are of one document, and it has no "
      "input \"document_ids\" for that",
      "write pack = \"pad\", or add the input, int64 with the shape of the tokens");
}

// clang-format off
std::vector<Key> document_keys(std::vector<Key> own) {
  using O = DocumentOptions;
  using K = KeysOf<O>;
  std::vector<Key> keys = {
      K::texts<&O::paths>("paths", "globs, `**` descends; relative to the current folder; also of object stores, as s3://bucket/text/*.txt"),
      K::numbers<&O::weights>("weights", ranges::kAboveZero, "mixing weights, one a path; default by size"),
      K::text<&O::tokenizer>("tokenizer", "bytes | path or URL of a SentencePiece model, or of a tokenizer.json"),
      K::choice<&O::pack>("pack", "isolated: packed documents do not attend to each other"),
      K::number<&O::held_out_fraction>("held_out_fraction", ranges::kBelowOne, "documents kept for evaluation, chosen by hash"),
  };
  keys.insert(keys.begin() + 1, std::make_move_iterator(own.begin()), std::make_move_iterator(own.end()));
  return keys;
}
// clang-format on

}  // namespace

DocumentKind::DocumentKind(std::string_view name, std::vector<Key> own, DocumentOptions defaults)
    : Declared(name, document_keys(std::move(own)), std::move(defaults)) {}

FileSearch DocumentKind::find(const DocumentOptions& options, const GoesOn& goes_on) const {
  return find_files(options.paths, goes_on);
}

void DocumentKind::check(const Options& options, const Origins& origins) const {
  const auto& data = options.as<DocumentOptions>();
  if (data.weights.empty() || data.weights.size() == data.paths.size()) return;
  origins.fail({"data.weights", "data.paths"},
               "weights has " + std::to_string(data.weights.size()) + " numbers for " +
                   std::to_string(data.paths.size()) + " paths; one for each, or none");
}

void DocumentKind::check_model(const Options& options, const SampleSpec& sample,
                               std::string_view model, const Origins& origins) const {
  if (sample.is_language()) {
    check_tensors(options.as<DocumentOptions>(), name(), sample, origins);
    return;
  }
  origins.fail({"data.kind"}, "kind = \"" + std::string(name()) +
                                  "\" needs a language model, and [model] kind is \"" +
                                  std::string(model) +
                                  "\"; write kind = \"random\", or choose a language model");
}

void DocumentKind::check_ready(const Options& options, const Origins& origins) const {
  if (!options.as<DocumentOptions>().paths.empty()) return;
  origins.fail({"data.paths"},
               "paths is empty, and kind = \"" + std::string(name()) + "\" reads from them",
               "as in paths = [\"corpus/**/*.txt\"], or --set 'data.paths=[\"corpus/**/*.txt\"]'");
}

std::vector<std::string> DocumentKind::warnings(const Options& options,
                                                const Origins& origins) const {
  if (!options.as<DocumentOptions>().paths.empty()) return {};
  return {origins.where({"data.paths"}) +
          ": [data] paths is empty: give at least one before training"};
}

std::int64_t DocumentKind::max_held_out_samples(const Options& options) const {
  return options.as<DocumentOptions>().held_out_fraction == 0 ? 0 : kUnlimited;
}

bool DocumentKind::gives(const Options& options, const TensorSpec& optional) const {
  return optional.name == kDocumentIds && options.as<DocumentOptions>().pack == Pack::kIsolated;
}

std::optional<std::string> DocumentKind::tokenizer(const Options& options) const {
  return options.as<DocumentOptions>().tokenizer;
}

Options DocumentKind::on_files(const Options& options, const std::vector<std::string>& files,
                               std::span<const std::string> /*asked*/) const {
  auto documents = options.as<DocumentOptions>();
  documents.paths = files;
  documents.weights.clear();
  documents.held_out_fraction = 0;
  return Options(documents);
}

std::vector<std::shared_ptr<const DocumentSource>> DocumentKind::open_sources(
    const DocumentOptions& options, const std::vector<std::vector<FoundFile>>& all,
    HostWork& host) const {
  Sources sources;
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.tokenizer);
  for (const std::vector<FoundFile>& files : all) {
    sources.push_back(open_documents(options, files, *tokenizer, host));
    const DocumentSource &first = *sources.front(), &last = *sources.back();
    if (last.tokenizer() != first.tokenizer() || last.separator() != first.separator()) {
      throw DataError(
          first.describe(0) + " and " + last.describe(0) + " were made by different tokenizers",
          "prepare them again with the same --tokenizer");
    }
  }
  return sources;
}

std::unique_ptr<Dataset> DocumentKind::open(const Options& options, const SampleSpec& sample,
                                            std::uint64_t seed) const {
  OwnWork alone;
  return open_on_host(options, sample, seed, alone);
}

std::unique_ptr<Dataset> DocumentKind::open_on_host(const Options& options,
                                                    const SampleSpec& sample, std::uint64_t seed,
                                                    HostWork& host) const {
  const auto& data = options.as<DocumentOptions>();
  // The checks of the recipe have told the user.
  troika::check(!data.paths.empty(), "data.paths is empty");
  troika::check(data.weights.empty() || data.weights.size() == data.paths.size(),
                "data.weights does not go with data.paths");
  std::vector<std::string> warnings;
  FileSearch found = find_once(host, [&](const GoesOn& goes_on) { return find(data, goes_on); });
  // Of those that another rank has listed.
  for (const std::string& path : data.paths) {
    if (is_remote(path)) remember_store_options(with_s3_scheme(path));
  }
  FilesOfSources files = files_of_sources(data, std::move(found), warnings);
  Sources sources = open_sources(data, files, host);
  return std::make_unique<PackedDataset>(data, std::move(files), std::move(sources),
                                         std::move(warnings), sample, seed);
}

}  // namespace troika
