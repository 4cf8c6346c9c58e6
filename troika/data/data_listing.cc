#include <troika/base/credentials.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/data/data_listing.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <unordered_map>
#include <utility>

namespace troika {
namespace {

// Entries begin with what they are of, and have no NUL.
constexpr char kFile = 'f', kContent = 'c', kDescription = 'd', kFingerprint = 'h';
constexpr char kEnd = '\0';
// Of a record.
constexpr std::size_t kMostRecordBytes = std::size_t{32} << 10;
constexpr std::string_view kFilesWord = "files ", kMoreWord = "more ";

std::vector<std::string_view> parts_of(std::string_view text, char end) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t size = std::min(text.find(end), text.size());
    parts.push_back(text.substr(0, size));
    text.remove_prefix(std::min(size + 1, text.size()));
  }
  return parts;
}

std::int64_t number_in(std::string_view text, int base = 10) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    throw DataError("a listing of data files says " + quote(text) + " where a number belongs");
  }
  return static_cast<std::int64_t>(number);
}

std::string entry_of(const DataFile& file) {
  return kFile + std::to_string(file.size) + " " + hex(file.head) + " " +
         without_credentials(file.path);
}

// "SIZE HEAD PATH", and "CONTENT PATH".
DataFile file_in(std::string_view text) {
  const std::size_t size = std::min(text.find(' '), text.size());
  const std::size_t head = std::min(text.find(' ', size + 1), text.size());
  if (head >= text.size()) throw DataError("a listing of data files has no path in " + quote(text));
  return {std::string(text.substr(head + 1)), number_in(text.substr(0, size)),
          static_cast<std::uint64_t>(number_in(text.substr(size + 1, head - size - 1), 16))};
}

std::string_view path_in(std::string_view entry) {
  for (int spaces = entry.front() == kFile ? 2 : 1; spaces > 0; --spaces) {
    entry.remove_prefix(std::min(entry.find(' ') + 1, entry.size()));
  }
  return entry;
}

bool is_of_file(std::string_view entry) {
  return !entry.empty() && (entry.front() == kFile || entry.front() == kContent);
}

// "(file 3 of 12)"
std::string number_of(std::int64_t index, std::int64_t files) {
  return " (file " + std::to_string(index + 1) + " of " + std::to_string(files) + ")";
}

std::string change_of(const DataFile& before, const DataFile& now) {
  if (now.size == before.size) return " has other contents";
  const bool longer = now.size > before.size;
  const auto bytes =
      static_cast<std::uint64_t>(longer ? now.size - before.size : before.size - now.size);
  return " is " + format_bytes(bytes) + (longer ? " longer" : " shorter");
}

std::string in_addition(std::string_view path, std::int64_t files) {
  return shown_path(path) + " is there in addition to " +
         (files == 1 ? "the only file" : "the " + std::to_string(files) + " files");
}

bool has_path(std::span<const std::string_view> entries, std::string_view path) {
  return std::ranges::any_of(
      entries, [&](std::string_view each) { return is_of_file(each) && path_in(each) == path; });
}

std::string difference_of_files(std::string_view entry, std::string_view own, std::int64_t index,
                                std::int64_t files) {
  const std::string name = shown_path(path_in(entry)) + number_of(index, files);
  if (entry.front() == kContent) return name + " has other contents";
  return name + change_of(file_in(entry.substr(1)), file_in(own.substr(1)));
}

// Of entries from the same `first` on, of a list of so many files.
std::string difference(std::span<const std::string_view> entries,
                       std::span<const std::string_view> own, std::int64_t first,
                       std::int64_t files) {
  const auto [entry, other] = std::ranges::mismatch(entries, own);
  const std::string_view a = entry == entries.end() ? "" : *entry;
  const std::string_view b = other == own.end() ? "" : *other;
  if (is_of_file(a)) {
    const std::int64_t index = first + (entry - entries.begin());
    if (is_of_file(b) && path_in(a) == path_in(b)) return difference_of_files(a, b, index, files);
    if (!has_path(own, path_in(a))) {
      return shown_path(path_in(a)) + number_of(index, files) + " is missing";
    }
  }
  if (is_of_file(b)) return in_addition(path_in(b), files);
  if (a.starts_with(kDescription) || b.starts_with(kDescription)) {
    const auto line = [](std::string_view text) {
      text.remove_prefix(std::min(text.find_first_not_of(" ", 1), text.size()));
      return text.empty() ? std::string("nothing") : quote(text);
    };
    return "they become tensors in another way, " + line(b) + " instead of " + line(a);
  }
  return "what is read of the files differs, though their names and sizes do not";
}

struct Summary {
  std::int64_t files = 0;
  std::vector<std::string_view> blocks;
};

Summary parse_summary(std::string_view text) {
  Summary summary;
  summary.blocks = parts_of(text, ' ');
  if (summary.blocks.empty()) throw DataError("a summary of data files is empty");
  summary.files = number_in(summary.blocks.front());
  summary.blocks.erase(summary.blocks.begin());
  return summary;
}

std::size_t first_other_block(const Summary& a, const Summary& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a.blocks, b.blocks).in1 - a.blocks.begin());
}

// Printable on one line: paths may be any bytes.
std::string escaped(std::string_view path) {
  std::string text;
  for (const char each : path) {
    if (each > ' ' && each <= '~' && each != '%') {
      text += each;
    } else {
      text += "%" + hex(static_cast<unsigned char>(each)).substr(14);
    }
  }
  return text;
}

std::string unescaped(std::string_view text) {
  std::string path;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      path += text[i];
      continue;
    }
    path += static_cast<char>(number_in(text.substr(i + 1, 2), 16));
    i += 2;
  }
  return path;
}

std::string hash_of(std::span<const std::string> entries) {
  ContentHash hash;
  for (const std::string& each : entries) hash.update(each).update(std::string_view(&kEnd, 1));
  return hex(hash.digest());
}

// What record() has written.
struct Record {
  std::vector<DataFile> files;  // the first ones
  std::int64_t total = 0;
  std::string rest;  // the hash of the others; empty where there are none
};

Record parse_record(std::string_view text) {
  Record record;
  for (const std::string_view line : parts_of(text, '\n')) {
    if (line.starts_with(kFilesWord)) {
      record.total = number_in(line.substr(kFilesWord.size()));
    } else if (line.starts_with(kMoreWord)) {
      record.rest = line.substr(kMoreWord.size());
    } else {
      DataFile file = file_in(line);
      file.path = unescaped(file.path);
      record.files.push_back(std::move(file));
    }
  }
  return record;
}

}  // namespace

DataListing::DataListing(std::vector<std::string> entries, std::int64_t files)
    : entries_(std::move(entries)), files_(files), summary_(std::to_string(files)) {
  const std::span all(entries_);
  for (std::size_t begin = 0; begin < all.size(); begin += kListingBlock) {
    const std::size_t count = std::min<std::size_t>(kListingBlock, all.size() - begin);
    summary_ += " " + hash_of(all.subspan(begin, count));
  }
}

DataListing DataListing::of(const Dataset& dataset) {
  std::vector<std::string> entries;
  for (const DataFile& file : dataset.files()) entries.push_back(entry_of(file));
  const std::int64_t files = std::ssize(entries);
  const std::string description = dataset.description();
  for (const std::string_view line : parts_of(description, '\n')) {
    entries.push_back(kDescription + std::string(line));
  }
  entries.push_back(kFingerprint + dataset.fingerprint());
  return DataListing(std::move(entries), files);
}

DataListing DataListing::of_description(const Dataset& dataset) {
  std::vector<std::string> entries;
  const std::string description = dataset.description();
  for (const std::string_view line : parts_of(description, '\n')) {
    entries.push_back(kDescription + std::string(line));
  }
  return DataListing(std::move(entries), 0);
}

DataListing DataListing::of_contents(std::span<const DataFile> files,
                                     std::span<const std::string> contents) {
  check(files.size() == contents.size(), "a text for each file");
  std::vector<std::string> entries;
  for (std::size_t i = 0; i < files.size(); ++i) {
    entries.push_back(kContent + contents[i] + " " + without_credentials(files[i].path));
  }
  return DataListing(std::move(entries), std::ssize(files));
}

std::string DataListing::excerpt(std::string_view other_summary) const {
  const std::size_t block =
      first_other_block(parse_summary(summary_), parse_summary(other_summary));
  std::string text;
  const std::size_t begin = std::min(block * kListingBlock, entries_.size());
  const std::size_t end = std::min(begin + kListingBlock, entries_.size());
  for (std::size_t i = begin; i < end; ++i) text.append(entries_[i]).push_back(kEnd);
  return text;
}

std::string DataListing::difference_from(std::string_view other_summary,
                                         std::string_view other_excerpt) const {
  const Summary other = parse_summary(other_summary);
  const std::size_t block = first_other_block(parse_summary(summary_), other);
  const std::string own = excerpt(other_summary);
  const std::vector<std::string_view> others = parts_of(other_excerpt, kEnd);
  for (const std::string_view entry : others) {  // which another process has sent
    if (entry.starts_with(kFile)) (void)file_in(entry.substr(1));
  }
  return difference(others, parts_of(own, kEnd), static_cast<std::int64_t>(block) * kListingBlock,
                    other.files);
}

std::string DataListing::record() const {
  std::string text = std::string(kFilesWord) + std::to_string(files_) + "\n";
  const std::span files = std::span(entries_).first(static_cast<std::size_t>(files_));
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (text.size() > kMostRecordBytes) {
      return text.append(kMoreWord).append(hash_of(files.subspan(i))).append("\n");
    }
    const std::string_view fields = std::string_view(files[i]).substr(1);
    const std::string_view path = path_in(files[i]);
    text.append(fields.substr(0, fields.size() - path.size())).append(escaped(path)).append("\n");
  }
  return text;
}

std::string DataListing::changes_since(std::string_view text) const {
  const Record before = parse_record(text);
  const std::span files = std::span(entries_).first(static_cast<std::size_t>(files_));
  std::unordered_map<std::string_view, std::size_t> now;
  for (std::size_t i = 0; i < files.size(); ++i) now.emplace(path_in(files[i]), i);
  std::string first;
  std::int64_t changes = 0;
  const auto note = [&](const auto& describe) {
    if (changes++ == 0) first = describe();
  };
  std::set<std::size_t> known;
  for (std::size_t i = 0; i < before.files.size(); ++i) {
    const DataFile& file = before.files[i];
    const auto name = [&] {
      return shown_path(file.path) + number_of(static_cast<std::int64_t>(i), before.total);
    };
    const auto found = now.find(file.path);
    if (found == now.end()) {
      note([&] { return name() + " is missing"; });
      continue;
    }
    known.insert(found->second);
    const DataFile own = file_in(std::string_view(files[found->second]).substr(1));
    if (own != file) note([&] { return name() + change_of(file, own); });
  }
  std::vector<std::string> others;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!known.contains(i)) others.push_back(files[i]);
  }
  if (!before.rest.empty() && hash_of(others) != before.rest) {
    note([&] {
      return "of the files behind the first " + std::to_string(before.files.size()) +
             " some are others";
    });
  }
  for (const std::string& each : others) {
    if (before.rest.empty()) note([&] { return in_addition(path_in(each), before.total); });
  }
  if (changes < 2) return first;
  return first + "; " + plural(changes - 1, "more file") +
         (changes == 2 ? " has changed" : " have changed");
}

}  // namespace troika
