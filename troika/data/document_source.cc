#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/random.h>
#include <troika/data/document_source.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace troika {
namespace {

constexpr std::int64_t kCheckBlock = 65536;

bool all_inside(std::span<const std::int64_t> ids, std::int64_t vocab_size) {
  // One pass without branches: a negative id is a huge unsigned one.
  std::uint64_t largest = 0;
  for (const std::int64_t id : ids) largest = std::max(largest, static_cast<std::uint64_t>(id));
  return largest < static_cast<std::uint64_t>(vocab_size);
}

void check_document(const DocumentSource& source, std::int64_t document, std::int64_t vocab_size) {
  std::vector<std::int64_t> ids;
  for (std::int64_t first = 0; first < source.length(document); first += kCheckBlock) {
    ids.resize(static_cast<std::size_t>(std::min(kCheckBlock, source.length(document) - first)));
    source.read(document, first, ids);
    check_ids(source, document, ids, vocab_size);
  }
}

}  // namespace

std::uint64_t document_key(std::uint64_t size, std::span<const std::byte> head) {
  return content_hash(head.first(std::min(head.size(), kKeyBytes)), size);
}

bool is_held_out(std::uint64_t key, double held_out_fraction) {
  // Mixed once more, so that other uses of the key are independent of the split.
  return static_cast<double>(mix_bits(key + 0x9E3779B97F4A7C15ULL) >> 11) * 0x1.0p-53 <
         held_out_fraction;
}

void check_ids(const DocumentSource& source, std::int64_t document,
               std::span<const std::int64_t> ids, std::int64_t vocab_size) {
  if (all_inside(ids, vocab_size)) return;
  const auto bad = std::find_if(ids.begin(), ids.end(),
                                [&](std::int64_t id) { return id < 0 || id >= vocab_size; });
  throw DataError(source.describe(document) + " holds the token id " + std::to_string(*bad) +
                      ", but model.vocab_size is " + std::to_string(vocab_size),
                  "raise model.vocab_size, or use the tokenizer that the model is for");
}

void check_vocabulary(const DocumentSource& source, std::int64_t vocab_size) {
  if (source.separator() >= vocab_size) {
    throw DataError(source.describe(0) + " uses the token id " +
                        std::to_string(source.separator()) +
                        " between documents, but model.vocab_size is " + std::to_string(vocab_size),
                    "raise model.vocab_size, or use the tokenizer that the model is for");
  }
  if (source.largest_id() < vocab_size) return;
  // Threads skip what lies behind a document already found bad, and the lowest one is reported.
  std::atomic<std::int64_t> first_bad = source.documents();
  at::parallel_for(0, source.documents(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t document = begin; document < end && document < first_bad; ++document) {
      try {
        check_document(source, document, vocab_size);
      } catch (const DataError&) {
        std::int64_t known = first_bad;
        while (document < known && !first_bad.compare_exchange_weak(known, document)) {
        }
      }
    }
  });
  if (first_bad < source.documents()) check_document(source, first_bad, vocab_size);
}

}  // namespace troika
