// Words for error messages: what the user may have meant, and a safe way to show what the file
// held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a`
// into `b` (Damerau-Levenshtein, no substring edited twice). Upper and lower case count as the
// same, and so do '-' and '_'.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns whether two words `distance` apart are close enough to suggest one for the other. The
// limit is a third of the longer one, or one edit where that is more, and never all of it.
[[nodiscard]] bool is_plausible_typo(std::string_view a, std::string_view b, std::size_t distance);

// Returns the candidate nearest to `word`, the first of equals, if it is plausible. `candidates` is
// any range of strings or string views.
template <class Range>
[[nodiscard]] std::optional<std::string> nearest(std::string_view word, const Range& candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = 0;
  for (const std::string_view candidate : candidates) {
    // The difference in length is a lower bound, and keeps a very long word cheap.
    const std::size_t gap = word.size() > candidate.size() ? word.size() - candidate.size()
                                                           : candidate.size() - word.size();
    if (!is_plausible_typo(word, candidate, gap)) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (!is_plausible_typo(word, candidate, distance)) continue;
    if (best && distance >= best_distance) continue;
    best = std::string(candidate);
    best_distance = distance;
  }
  return best;
}

// Returns the strings of a range with `separator` between them.
template <class Range>
[[nodiscard]] std::string join(const Range& parts, std::string_view separator) {
  std::string text;
  bool first = true;
  for (const std::string_view part : parts) {
    if (!first) text += separator;
    text += part;
    first = false;
  }
  return text;
}

// Returns "1 rank", "2 ranks".
[[nodiscard]] std::string plural(std::int64_t count, std::string_view noun);

// Returns `text` in single quotes for a message of one line. Control characters, quotes,
// backslashes and bytes that are not UTF-8 are escaped. Text longer than `max_bytes` is cut with
// "...".
[[nodiscard]] std::string quote(std::string_view text, std::size_t max_bytes = 80);

// U+FFFD, which stands for what is no character.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Returns the number of bytes of `text` that belong to no character of UTF-8: text in Latin-1, say,
// or no text.
[[nodiscard]] std::size_t count_not_utf8(std::string_view text);

// Text that arrives in pieces cut anywhere, as UTF-8 that can be shown at once: a character waits
// until all its bytes are there, and a byte that belongs to none becomes U+FFFD.
class Utf8Stream {
 public:
  // Takes the next bytes, and returns the text that can be shown now.
  [[nodiscard]] std::string push(std::string_view bytes);
  // Returns the rest, at the end.
  [[nodiscard]] std::string finish();

 private:
  std::string waiting_;
};

}  // namespace troika
