#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/rendezvous/slurm.h>

#include <algorithm>
#include <charconv>

namespace troika {
namespace {

[[noreturn]] void throw_malformed(std::string_view list, std::string_view variable) {
  throw UsageError("environment variable " + std::string(variable) + "=" + quote(list) +
                   " is not a list that Slurm writes");
}

// Reads a positive number from the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 1) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  return value;
}

// Reads "(x3)" from the front of `text`; 1 where there is none.
std::optional<int> take_repeats(std::string_view& text) {
  if (!text.starts_with('(')) return 1;
  if (!text.starts_with("(x")) return std::nullopt;
  text.remove_prefix(2);
  const auto times = take_number(text);
  if (!times || !text.starts_with(')')) return std::nullopt;
  text.remove_prefix(1);
  return times;
}

}  // namespace

std::string first_host(std::string_view list, std::string_view variable) {
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const std::size_t close = list.find(']', at);
    if (close == std::string_view::npos) throw_malformed(list, variable);
    const std::string_view inside = list.substr(at + 1, close - at - 1);
    const std::string_view first = inside.substr(0, inside.find_first_of("-,"));
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (first.empty() || !std::all_of(first.begin(), first.end(), is_digit)) {
      throw_malformed(list, variable);
    }
    host += first;
    at = close;
  }
  if (host.empty()) throw_malformed(list, variable);
  return host;
}

std::optional<int> tasks_of_node(std::string_view list, int index, std::string_view variable) {
  std::string_view rest = list;
  int seen = 0;
  while (!rest.empty()) {
    const auto tasks = take_number(rest);
    const auto times = tasks ? take_repeats(rest) : std::nullopt;
    if (!times || (!rest.empty() && rest[0] != ',')) throw_malformed(list, variable);
    if (index < seen + *times) return tasks;
    seen += *times;
    if (!rest.empty()) rest.remove_prefix(1);
  }
  return std::nullopt;
}

}  // namespace troika
