#include <troika/data/hub_tokenizer/byte_level.h>
#include <troika/data/hub_tokenizer/unicode.h>

#include <array>
#include <map>

namespace troika::hub_tokenizer_plugin {
namespace {

constexpr int kBytes = 256;

struct Table {
  std::array<char32_t, kBytes> characters{};
  std::map<char32_t, char> bytes;

  Table() {
    char32_t unseen = kBytes;
    for (int byte = 0; byte < kBytes; ++byte) {
      const bool is_seen = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
      const char32_t character = is_seen ? static_cast<char32_t>(byte) : unseen++;
      characters[static_cast<std::size_t>(byte)] = character;
      bytes[character] = static_cast<char>(byte);
    }
  }
};

const Table& table() {
  static const Table kTable;
  return kTable;
}

}  // namespace

std::string to_byte_characters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    append_utf8(text, table().characters[static_cast<unsigned char>(byte)]);
  }
  return text;
}

std::string from_byte_characters(std::string_view text) {
  std::string bytes;
  for (const char32_t character : characters_of(text)) {
    const auto found = table().bytes.find(character);
    if (found == table().bytes.end()) {
      append_utf8(bytes, character);
    } else {
      bytes += found->second;
    }
  }
  return bytes;
}

}  // namespace troika::hub_tokenizer_plugin
