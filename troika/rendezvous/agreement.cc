#include <troika/rendezvous/agreement.h>

#include <initializer_list>

namespace troika {
namespace {

// Takes one line off the front.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

struct Setting {
  std::string key;
  std::string value;
};

Setting setting_of(std::string_view line, const std::string& table) {
  const std::size_t equals = line.find('=');
  const std::string key(trimmed(line.substr(0, equals)));
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view{} : line.substr(equals + 1);
  return {table.empty() ? key : table + "." + key, std::string(trimmed(value))};
}

std::string text_of(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

}  // namespace

std::string list_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t first = 0, last; first < ranks.size(); first = last) {
    last = first + 1;
    while (last < ranks.size() && ranks[last] == ranks[last - 1] + 1) ++last;
    constexpr std::size_t kWorthARange = 4;
    if (last - first < kWorthARange) last = first + 1;
    std::string part = std::to_string(ranks[first]);
    if (last - first > 1) part += " to " + std::to_string(ranks[last - 1]);
    parts.push_back(std::move(part));
  }
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " and " : ", ";
    text += parts[i];
  }
  return text;
}

std::string first_difference(std::string_view ours, std::string_view theirs,
                             const std::string& where_ours, const std::string& where_theirs) {
  std::string table;
  while (!ours.empty() || !theirs.empty()) {
    const std::string_view left = trimmed(take_line(ours));
    const std::string_view right = trimmed(take_line(theirs));
    if (left == right) {
      if (left.starts_with('[') && left.ends_with(']')) table = left.substr(1, left.size() - 2);
      continue;
    }
    const Setting own = setting_of(left, table), other = setting_of(right, table);
    if (own.key == other.key) {
      return text_of(
          {own.key, " is ", own.value, " ", where_ours, " and ", other.value, " ", where_theirs});
    }
    // Which of the two has a line too many: the one whose line does not come later in the other.
    if (right.empty() || (!left.empty() && theirs.find(left) == std::string_view::npos))
      return text_of({own.key, " is set ", where_ours, ", but not ", where_theirs});
    return text_of({other.key, " is set ", where_theirs, ", but not ", where_ours});
  }
  return {};
}

}  // namespace troika
