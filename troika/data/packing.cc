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
  std::int64_t tokens = 0;
  for (std::int64_t document = 0; document < source_->documents(); ++document) {
    if (!is_here(document)) continue;
    ++documents_;
    tokens += source_->length(document);
    text_bytes_ += source_->text_bytes(document);
  }
  samples_ = options_.pack == Pack::kPad
                 ? index_.total()
                 : divide_up(std::max<std::int64_t>(0, index_.total() - 1), options_.seq_len);
  if (source_->has_mask()) {
    count_targets();
  } else if (options_.pack == Pack::kConcatenate) {
    // The first token of all has nothing to be predicted from.
    targets_ = std::max<std::int64_t>(0, tokens + documents_ - 1);
  } else {
    targets_ = tokens;  // nor has the first of each document here; the separator counts
  }
}

void PackedDocuments::count_targets() {
  std::vector<std::int64_t> kept;
  for (std::int64_t index = 0; index < samples_; ++index) {
    const std::vector<char> targets = targets_of(stretches(index));
    const auto count = std::ranges::count(targets, 1);
    if (count > 0) kept.push_back(index);
    targets_ += count;
  }
  if (std::ssize(kept) == samples_) return;
  samples_ = std::ssize(kept);
  kept_ = std::move(kept);
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

std::vector<PackedDocuments::Stretch> PackedDocuments::stretches(std::int64_t index) const {
  const std::int64_t length = options_.seq_len;
  const bool pad = options_.pack == Pack::kPad;
  // One id more than inputs, because the last input has a target too.
  const std::int64_t wanted =
      pad ? length + 1 : std::min(length + 1, index_.total() - index * length);
  DocumentIndex::Location location = index_.find(pad ? index : index * length);
  if (pad) location.offset *= length;
  std::vector<Stretch> all;
  for (std::int64_t count = 0; count < wanted;) {
    const std::int64_t left = source_->length(location.document) + 1 - location.offset;
    const std::int64_t here = std::min(left, wanted - count);
    all.push_back({location.document, location.offset, count, here});
    count += here;
    if (pad) break;
    if (count < wanted) location = {index_.next(location.document), 0};
  }
  return all;
}

std::vector<char> PackedDocuments::targets_of(std::span<const Stretch> stretches) const {
  std::vector<char> targets(static_cast<std::size_t>(options_.seq_len) + 1, 0);
  for (const Stretch& each : stretches) {
    const auto here = std::span(targets).subspan(static_cast<std::size_t>(each.begin),
                                                 static_cast<std::size_t>(each.count));
    const std::int64_t tokens = std::min(each.count, source_->length(each.document) - each.offset);
    source_->read_mask(each.document, each.offset, here.first(static_cast<std::size_t>(tokens)));
    if (tokens < each.count) here.back() = source_->separator_is_target() ? 1 : 0;
    if (options_.pack == Pack::kIsolated) here.front() = 0;  // another document stands before it
  }
  targets.front() = 0;  // it is an input alone
  return targets;
}

void PackedDocuments::read(const Stretch& stretch, std::span<std::int64_t> ids) const {
  const std::int64_t tokens =
      std::min(stretch.count, source_->length(stretch.document) - stretch.offset);
  const auto of_text = ids.first(static_cast<std::size_t>(tokens));
  if (!of_text.empty()) {
    source_->read(stretch.document, stretch.offset, of_text);
    check_ids(*source_, stretch.document, of_text, options_.vocab_size);
  }
  if (tokens < stretch.count) ids.back() = source_->separator();
}

std::int64_t PackedDocuments::fill(std::int64_t index, const Sample& sample) const {
  check(index >= 0 && index < samples_, "a sample outside its source");
  if (!kept_.empty()) index = kept_[static_cast<std::size_t>(index)];
  const std::vector<Stretch> parts = stretches(index);
  const std::vector<char> targets = targets_of(parts);
  std::vector<std::int64_t> ids(targets.size()), owner(targets.size());
  for (std::size_t number = 0; number < parts.size(); ++number) {
    const auto begin = static_cast<std::size_t>(parts[number].begin);
    const auto count = static_cast<std::size_t>(parts[number].count);
    read(parts[number], std::span(ids).subspan(begin, count));
    std::fill_n(owner.begin() + parts[number].begin, count, static_cast<std::int64_t>(number));
  }
  // What is left belongs to no document.
  const std::int64_t end = parts.back().begin + parts.back().count;
  std::fill(ids.begin() + end, ids.end(), source_->separator());
  std::fill(owner.begin() + end, owner.end(), std::ssize(parts));

  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    sample.inputs[i] = ids[i];
    sample.targets[i] = targets[i + 1] != 0 ? ids[i + 1] : kIgnoredTarget;
  }
  std::copy_n(owner.begin(), sample.document_ids.size(), sample.document_ids.begin());
  return std::ranges::count(targets, 1);
}

}  // namespace troika
