#include <troika/base/error.h>
#include <troika/data/packing.h>
#include <troika/nn/microbatch.h>

#include <algorithm>

namespace troika {

template <>
std::span<const std::string_view> names_of<Pack>() {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"concatenate", "isolated", "pad"});
  return kNames;
}

namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

DocumentIndex::DocumentIndex(std::int64_t documents, Length length) : length_(std::move(length)) {
  block_begin_.reserve(static_cast<std::size_t>(divide_up(documents, kBlock)));
  for (std::int64_t document = 0; document < documents; ++document) {
    if (document % kBlock == 0) block_begin_.push_back(total_);
    total_ += length_(document);
  }
}

DocumentIndex::Location DocumentIndex::find(std::int64_t item) const {
  check(item >= 0 && item < total_, "a location outside the documents");
  const auto behind = std::upper_bound(block_begin_.begin(), block_begin_.end(), item) - 1;
  std::int64_t offset = item - *behind;
  std::int64_t document = (behind - block_begin_.begin()) * kBlock;
  for (std::int64_t here = length_(document); offset >= here; here = length_(document)) {
    offset -= here;
    ++document;
  }
  return {document, offset};
}

std::int64_t DocumentIndex::next(std::int64_t document) const {
  do {
    ++document;
  } while (length_(document) == 0);
  return document;
}

PackedDocuments::PackedDocuments(std::shared_ptr<const DocumentSource> source,
                                 const PackOptions& options, Split split)
    : source_(std::move(source)),
      options_(options),
      split_(split),
      index_(source_->documents(),
             [this](std::int64_t document) { return indexed_length(document); }) {
  std::int64_t tokens = 0, prompts = 0;
  bool begins_with_prompt = false;
  for (std::int64_t document = 0; document < source_->documents(); ++document) {
    if (!is_here(document)) continue;
    const std::int64_t prompt = source_->prompt_length(document);
    if (documents_++ == 0) begins_with_prompt = prompt > 0;
    tokens += source_->length(document);
    // The first of a document is no target where documents stand apart.
    prompts += options_.pack == Pack::kConcatenate ? prompt : std::max<std::int64_t>(0, prompt - 1);
    text_bytes_ += source_->text_bytes(document);
  }
  if (options_.pack == Pack::kConcatenate) {
    // The first token of all has nothing to be predicted from.
    targets_ =
        std::max<std::int64_t>(0, tokens + documents_ - 1 - prompts + (begins_with_prompt ? 1 : 0));
  } else {
    // Nor has the first of each document here; the separator counts.
    targets_ = tokens - prompts;
  }
  samples_ = options_.pack == Pack::kPad
                 ? index_.total()
                 : divide_up(std::max<std::int64_t>(0, index_.total() - 1), options_.seq_len);
}

bool PackedDocuments::is_here(std::int64_t document) const {
  const bool held_out = options_.held_out_fraction > 0 &&
                        is_held_out(source_->key(document), options_.held_out_fraction);
  return held_out == (split_ == Split::kHeldOut);
}

std::int64_t PackedDocuments::indexed_length(std::int64_t document) const {
  if (!is_here(document)) return 0;
  const std::int64_t tokens = source_->length(document);
  return options_.pack == Pack::kPad ? divide_up(tokens, options_.seq_len) : tokens + 1;
}

std::int64_t PackedDocuments::read(std::int64_t document, std::int64_t offset,
                                   std::span<std::int64_t> out) const {
  const std::int64_t left = source_->length(document) - offset;
  const auto ids =
      out.first(static_cast<std::size_t>(std::min(left, static_cast<std::int64_t>(out.size()))));
  if (!ids.empty()) {
    source_->read(document, offset, ids);
    check_ids(*source_, document, ids, options_.vocab_size);
  }
  if (ids.size() == out.size()) return static_cast<std::int64_t>(ids.size());
  out[ids.size()] = source_->separator();
  return static_cast<std::int64_t>(ids.size()) + 1;
}

std::int64_t PackedDocuments::fill(std::int64_t index, const Sample& sample) const {
  check(index >= 0 && index < samples_, "a sample outside its source");
  const std::int64_t length = options_.seq_len;
  const bool pad = options_.pack == Pack::kPad, isolated = options_.pack == Pack::kIsolated;

  // One id more than inputs, because the last input has a target too; whose each id is, and whether
  // it is of a prompt.
  std::vector<std::int64_t> ids(static_cast<std::size_t>(length) + 1);
  std::vector<std::int64_t> owner(ids.size());
  std::vector<char> is_prompt(ids.size(), 0);
  DocumentIndex::Location location = index_.find(pad ? index : index * length);
  if (pad) location.offset *= length;
  const std::int64_t wanted =
      pad ? length + 1 : std::min(length + 1, index_.total() - index * length);
  std::int64_t count = 0;
  for (std::int64_t number = 0; count < wanted; ++number) {
    const std::int64_t got = read(location.document, location.offset,
                                  std::span(ids).subspan(static_cast<std::size_t>(count),
                                                         static_cast<std::size_t>(wanted - count)));
    std::fill_n(owner.begin() + count, got, number);
    const std::int64_t prompt = source_->prompt_length(location.document) - location.offset;
    std::fill_n(is_prompt.begin() + count, std::clamp<std::int64_t>(prompt, 0, got), 1);
    count += got;
    if (pad) break;
    if (count < wanted) location = {index_.next(location.document), 0};
  }
  // What is left belongs to no document.
  std::fill(ids.begin() + count, ids.end(), source_->separator());
  std::fill(owner.begin() + count, owner.end(), owner[static_cast<std::size_t>(count) - 1] + 1);

  std::int64_t valid = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) {
    const bool counts = static_cast<std::int64_t>(i) + 1 < count &&
                        (!isolated || owner[i] == owner[i + 1]) && is_prompt[i + 1] == 0;
    sample.inputs[i] = ids[i];
    sample.targets[i] = counts ? ids[i + 1] : kIgnoredTarget;
    valid += counts ? 1 : 0;
  }
  std::copy_n(owner.begin(), sample.document_ids.size(), sample.document_ids.begin());
  return valid;
}

}  // namespace troika
