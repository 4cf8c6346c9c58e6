#include <fcntl.h>
#include <troika/base/error.h>
#include <troika/data/sources/tokens/shard_writer.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace troika {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{1} << 20;

}  // namespace

std::uint32_t token_bytes_for(std::uint64_t vocab_size) {
  return vocab_size <= 256 ? 1 : vocab_size <= 65536 ? 2 : 4;
}

TokenShardHeader header_for(const Tokenizer& tokenizer, bool separator_is_target) {
  TokenShardHeader header;
  header.vocab_size = static_cast<std::uint64_t>(tokenizer.vocab_size());
  header.separator = static_cast<std::uint64_t>(tokenizer.separator());
  header.tokenizer = tokenizer.fingerprint();
  header.separator_is_target = separator_is_target;
  return header;
}

ShardWriter::ShardWriter(std::filesystem::path path, const TokenShardHeader& header)
    : path_(std::move(path)), header_(header) {
  header_.token_bytes = token_bytes_for(header.vocab_size);
  header_.documents = header_.tokens = header_.text_bytes = header_.largest_id = 0;
  header_.has_mask = !header.separator_is_target;
  fd_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd_.valid()) throw_storage_error("write", path_, errno);
  pending_.resize(kShardHeaderBytes);  // zeros, which no reader takes for a header
}

template <class Token>
void ShardWriter::append(std::span<const std::int32_t> ids) {
  const std::size_t before = pending_.size();
  pending_.resize(before + ids.size() * sizeof(Token));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<Token>(ids[i]);
    std::memcpy(pending_.data() + before + i * sizeof(Token), &id, sizeof(Token));
  }
}

void ShardWriter::add_mask(std::size_t tokens, std::span<const char> are_targets) {
  check(are_targets.empty() || are_targets.size() == tokens, "a mask is of other tokens");
  header_.has_mask |= std::ranges::count(are_targets, 0) > 0;
  if (!header_.has_mask) return;
  const std::uint64_t begin = header_.tokens;
  mask_.resize(mask_bytes(begin + tokens) / 8, ~std::uint64_t{0});  // all that came before are
  for (std::size_t i = 0; i < are_targets.size(); ++i) {
    if (are_targets[i] == 0) mask_[(begin + i) / 64] &= ~(std::uint64_t{1} << (begin + i) % 64);
  }
}

void ShardWriter::add_tokens(std::span<const std::int32_t> ids, std::span<const char> are_targets) {
  add_mask(ids.size(), are_targets);
  for (const std::int32_t id : ids) {
    header_.largest_id = std::max(header_.largest_id, static_cast<std::uint64_t>(id));
  }
  check(header_.largest_id < header_.vocab_size, "a tokenizer gave an id beyond its vocabulary");
  header_.tokens += ids.size();
  if (header_.token_bytes == 1) append<std::uint8_t>(ids);
  if (header_.token_bytes == 2) append<std::uint16_t>(ids);
  if (header_.token_bytes == 4) append<std::uint32_t>(ids);
  if (pending_.size() >= kFlushBytes) flush();
}

void ShardWriter::end_document(std::uint64_t key, std::uint64_t text_bytes) {
  begins_.push_back(header_.tokens);
  keys_.push_back(key);
  header_.text_bytes += text_bytes;
  ++header_.documents;
}

void ShardWriter::flush() {
  write_all(fd_.get(), pending_, path_);
  pending_.clear();
}

void ShardWriter::finish() {
  check(begins_.back() == header_.tokens, "a token shard ends inside a document");
  pending_.resize(pending_.size() + shard_padding(header_.tokens * header_.token_bytes));
  flush();
  if (header_.has_mask) {
    mask_.resize(mask_bytes(header_.tokens) / 8, ~std::uint64_t{0});
    if (header_.tokens % 64 != 0) mask_.back() &= (std::uint64_t{1} << header_.tokens % 64) - 1;
    write_all(fd_.get(), std::as_bytes(std::span(mask_)), path_);
  }
  write_all(fd_.get(), std::as_bytes(std::span(begins_)), path_);
  write_all(fd_.get(), std::as_bytes(std::span(keys_)), path_);
  if (::lseek(fd_.get(), 0, SEEK_SET) != 0) throw_storage_error("write", path_, errno);
  write_all(fd_.get(), encode_header(header_), path_);
  if (::fsync(fd_.get()) != 0) throw_storage_error("write", path_, errno);
  if (::close(fd_.release()) != 0) throw_storage_error("write", path_, errno);
}

}  // namespace troika
