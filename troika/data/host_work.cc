#include <troika/base/bytes.h>
#include <troika/data/host_work.h>

#include <utility>

namespace troika {
namespace {

void write_string(ByteWriter& writer, std::string_view text) {
  writer.write(static_cast<std::uint64_t>(text.size()));
  writer.write_text(text);
}

std::string read_string(ByteReader& reader) {
  const auto size = reader.read<std::uint64_t>();
  return std::string(text_of(reader.take(size)));
}

std::string encode_search(const FileSearch& search) {
  ByteWriter writer;
  writer.write(static_cast<std::uint64_t>(search.files.size()));
  for (const std::vector<FoundFile>& files : search.files) {
    writer.write(static_cast<std::uint64_t>(files.size()));
    for (const FoundFile& file : files) {
      writer.write(file.size);
      write_string(writer, file.path);
    }
  }
  writer.write(static_cast<std::uint64_t>(search.left_out.size()));
  for (const std::string& each : search.left_out) write_string(writer, each);
  return std::string(text_of(writer.bytes()));
}

FileSearch decode_search(std::string_view text) {
  ByteReader reader(bytes_of(text), "the list of data files of another rank");
  FileSearch search;
  for (auto patterns = reader.read<std::uint64_t>(); patterns > 0; --patterns) {
    std::vector<FoundFile>& files = search.files.emplace_back();
    for (auto count = reader.read<std::uint64_t>(); count > 0; --count) {
      const auto size = reader.read<std::int64_t>();
      files.push_back({read_string(reader), size});
    }
  }
  for (auto count = reader.read<std::uint64_t>(); count > 0; --count) {
    search.left_out.push_back(read_string(reader));
  }
  return search;
}

}  // namespace

FileSearch find_once(HostWork& host, const std::function<FileSearch(const GoesOn&)>& find) {
  if (host.ranks() == 1) return find({});
  return decode_search(
      host.once("data files", [&](const GoesOn& goes_on) { return encode_search(find(goes_on)); }));
}

}  // namespace troika
