#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/storage/object_store.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace troika {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : SafetensorsFile(MappedFile(path), path) {}

SafetensorsFile::SafetensorsFile(MappedFile file, std::filesystem::path path)
    : path_(std::move(path)), file_(std::move(file)) {
  const std::string source = shown_place(path_);
  bytes_ = file_.bytes();
  if (is_encrypted(bytes_)) bytes_ = decrypted_.emplace(bytes_, source).bytes();
  header_ = parse_safetensors(bytes_, source);
  for (std::size_t i = 0; i < header_.entries.size(); ++i) {
    by_name_.emplace(header_.entries[i].name, i);
  }
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.entries[found->second];
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) return *entry;
  std::vector<std::string_view> names;
  for (const TensorEntry& entry : entries()) names.push_back(entry.name);
  const auto near = nearest(name, names);
  throw DataError(shown_place(path()) + ": no tensor " + quote(name),
                  near ? "did you mean " + quote(*near) + "?" : "");
}

std::span<const std::byte> SafetensorsFile::data(const TensorEntry& entry) const {
  const auto section = bytes_.subspan(header_.data_begin);
  check(entry.begin <= entry.end && entry.end <= section.size(),
        "safetensors entry of another file: " + entry.name);
  return section.subspan(entry.begin, entry.bytes());
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorEntry> tensors, const Metadata& metadata)
    : SafetensorsWriter(path, std::move(tensors), metadata, Options()) {}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorEntry> tensors, const Metadata& metadata,
                                     Options options)
    : entries_(lay_out_safetensors(std::move(tensors))),
      header_(format_safetensors_header(entries_, metadata)),
      hash_(options.hash),
      file_(path) {
  if (options.key) {
    encryptor_ = std::make_unique<Encryptor>(
        *options.key, [this](std::span<const std::byte> bytes) { append(bytes); });
  }
  put(std::as_bytes(std::span(header_)));
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  file_.write(bytes);
  if (hash_ != nullptr) hash_->update(bytes);
  file_bytes_ += bytes.size();
}

void SafetensorsWriter::put(std::span<const std::byte> bytes) {
  if (encryptor_) {
    encryptor_->write(bytes);
  } else {
    append(bytes);
  }
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  check(next_ < entries_.size(), "safetensors: more tensors written than announced");
  const TensorEntry& entry = entries_[next_];
  check(bytes.size() == entry.bytes(), "safetensors: wrong size for tensor " + entry.name);
  put(bytes);
  written_ += bytes.size();
  ++next_;
}

void SafetensorsWriter::write_part(std::string_view name, std::uint64_t offset,
                                   std::span<const std::byte> bytes) {
  const auto entry = std::ranges::find(entries_, name, &TensorEntry::name);
  check(entry != entries_.end() && offset <= entry->bytes() &&
            bytes.size() <= entry->bytes() - offset,
        "safetensors: a part of no tensor");
  check(hash_ == nullptr && !encryptor_, "safetensors: parts of a file that is written in order");
  file_.write_at(header_.size() + entry->begin + offset, bytes);
  written_ += bytes.size();
  file_bytes_ += bytes.size();
}

void SafetensorsWriter::commit() {
  const std::uint64_t all = entries_.empty() ? 0 : entries_.back().end;
  check(written_ == all, "safetensors: fewer bytes written than announced");
  if (encryptor_) encryptor_->finish();
  file_.commit();
}

SafetensorsChunks::SafetensorsChunks(std::vector<TensorEntry> tensors, BytesOf bytes_of,
                                     SafetensorsWriter::Options options)
    : entries_(lay_out_safetensors(std::move(tensors))),
      bytes_of_(std::move(bytes_of)),
      header_(format_safetensors_header(entries_, {})),
      rest_(std::as_bytes(std::span(header_))),
      hash_(options.hash) {
  if (!options.key) return;
  const auto take = [this](std::span<const std::byte> bytes) {
    sealed_.insert(sealed_.end(), bytes.begin(), bytes.end());
  };
  encryptor_ = std::make_unique<Encryptor>(*options.key, take);
}

std::span<const std::byte> SafetensorsChunks::next_plain() {
  // What fits a core's cache: after the hash, whatever writes a piece finds it there.
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  while (rest_.empty() && next_ < entries_.size()) {
    const TensorEntry& entry = entries_[next_++];
    rest_ = bytes_of_(entry);
    check(rest_.size() == entry.bytes(), "safetensors: wrong size for tensor " + entry.name);
  }
  const auto piece = rest_.first(std::min(kPiece, rest_.size()));
  rest_ = rest_.subspan(piece.size());
  return piece;
}

std::span<const std::byte> SafetensorsChunks::next() {
  std::span<const std::byte> piece;
  if (encryptor_) {
    if (bytes_ > 0) sealed_.clear();  // the stream's header comes with the first piece
    while (sealed_.empty() && encryptor_) {
      const auto plain = next_plain();
      if (!plain.empty()) {
        encryptor_->write(plain);
        continue;
      }
      encryptor_->finish();
      encryptor_.reset();
    }
    piece = sealed_;
  } else {
    piece = next_plain();
  }
  if (hash_ != nullptr) hash_->update(piece);
  bytes_ += piece.size();
  return piece;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorBytes> tensors,
                       const Metadata& metadata) {
  std::vector<TensorEntry> entries;
  std::map<std::string_view, const TensorBytes*> by_name;
  for (const TensorBytes& tensor : tensors) {
    entries.push_back({.name = tensor.name, .type = tensor.type, .shape = tensor.shape});
    by_name.emplace(tensor.name, &tensor);
  }
  SafetensorsWriter writer(path, std::move(entries), metadata);
  for (const TensorEntry& entry : writer.entries()) writer.write(by_name.at(entry.name)->bytes);
  writer.commit();
}

}  // namespace troika
