#include <troika/base/text.h>

#include <algorithm>
#include <vector>

namespace troika {
namespace {

char folded(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

bool is_continuation(unsigned char c) {
  return (c & 0xC0) == 0x80;
}

unsigned char byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : static_cast<unsigned char>(0);
}

// How many bytes a character has that begins with this one; 0 when none does.
std::size_t length_by_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

// Whether a character may begin with these two: no overlong form, no surrogate, nothing beyond
// U+10FFFF.
bool may_begin(unsigned char lead, unsigned char second) {
  if (!is_continuation(second)) return false;
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second >= 0xA0)) return false;
  return !(lead == 0xF0 && second < 0x90) && !(lead == 0xF4 && second >= 0x90);
}

struct Front {
  std::size_t length;  // of the character at the front; 0 when there is none
  bool may_grow;       // there is none yet, but more bytes may make it one
};

Front front_of(std::string_view text) {
  const std::size_t length = text.empty() ? 0 : length_by_lead(byte_at(text, 0));
  if (length < 2) return {length, false};
  if (text.size() > 1 && !may_begin(byte_at(text, 0), byte_at(text, 1))) return {0, false};
  for (std::size_t i = 2; i < std::min(length, text.size()); ++i) {
    if (!is_continuation(byte_at(text, i))) return {0, false};
  }
  return text.size() < length ? Front{0, true} : Front{length, false};
}

// Length of the printable character at the front of `text` in UTF-8; 0 when there is none.
std::size_t printable_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return byte_at(text, i); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7F ? 1 : 0;
  const std::size_t length = front_of(text).length;
  // Control characters of Latin-1.
  if (lead == 0xC2 && byte(1) < 0xA0) return 0;
  // Line and paragraph separators and the marks that reverse the direction of a line.
  if (lead == 0xE2 && byte(1) == 0x80 && byte(2) >= 0xA8 && byte(2) <= 0xAE) return 0;
  if (lead == 0xE2 && byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9) return 0;
  return length;
}

std::string escaped(char c) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      const auto byte = static_cast<unsigned char>(c);
      return {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows i-2, i-1 and i of the dynamic programme.
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = folded(a[i - 1]) == folded(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
          folded(a[i - 2]) == folded(b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

bool is_plausible_typo(std::string_view a, std::string_view b, std::size_t distance) {
  const std::size_t longer = std::max(a.size(), b.size());
  return distance <= std::max<std::size_t>(1, longer / 3) && distance < longer;
}

std::size_t count_not_utf8(std::string_view text) {
  std::size_t count = 0;
  while (!text.empty()) {
    const std::size_t length = front_of(text).length;
    if (length == 0) ++count;
    text.remove_prefix(std::max<std::size_t>(1, length));
  }
  return count;
}

std::string Utf8Stream::push(std::string_view bytes) {
  waiting_ += bytes;
  std::string text;
  std::string_view rest = waiting_;
  while (!rest.empty()) {
    const Front front = front_of(rest);
    if (front.may_grow) break;
    text += front.length > 0 ? rest.substr(0, front.length) : kReplacementCharacter;
    rest.remove_prefix(std::max<std::size_t>(1, front.length));
  }
  waiting_ = std::string(rest);
  return text;
}

std::string Utf8Stream::finish() {
  std::string text;
  for (std::size_t i = 0; i < waiting_.size(); ++i) text += kReplacementCharacter;
  waiting_.clear();
  return text;
}

std::string plural(std::int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string quote(std::string_view text, std::size_t max_bytes) {
  std::string result = "'";
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t used = text.size() - rest.size();
    const std::size_t length = std::max<std::size_t>(1, printable_length(rest));
    if (used + length > max_bytes) break;
    const char c = rest.front();
    if (c == '\'' || c == '\\') {
      result.append("\\").append(1, c);
    } else if (printable_length(rest) == 0) {
      result += escaped(c);
    } else {
      result += rest.substr(0, length);
    }
    rest.remove_prefix(length);
  }
  return result + (rest.empty() ? "'" : "...'");
}

}  // namespace troika
