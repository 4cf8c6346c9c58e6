#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/config/toml_source.h>
#include <troika/config/toml_text.h>

#include <toml++/toml.h>
#include <algorithm>
#include <functional>
#include <optional>

namespace troika {
namespace {

// A parser that builds a table for each dot of a.b.c takes it apart again by recursion: bounded
// here, far from any stack's end.
constexpr std::size_t kMaxDots = 4096;

// Where the string that starts at `begin` (a quote) ends.
std::size_t after_string(std::string_view text, std::size_t begin) {
  const char quote = text[begin];
  const bool triple = text.substr(begin, 3) == std::string(3, quote);
  std::size_t i = begin + (triple ? 3 : 1);
  for (; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (!triple && (text[i] == quote || text[i] == '\n')) {
      return i + 1;
    } else if (triple && text.substr(i, 3) == std::string(3, quote)) {
      i += 3;
      // One or two quotes may belong to the text itself.
      for (int more = 0; more < 2 && i < text.size() && text[i] == quote; ++more) ++i;
      return i;
    }
  }
  return text.size();
}

std::size_t count_dots_outside_strings(std::string_view text) {
  std::size_t dots = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"' || text[i] == '\'') {
      i = after_string(text, i);
    } else if (text[i] == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else {
      dots += text[i] == '.' ? 1 : 0;
      ++i;
    }
  }
  return dots;
}

std::string on_one_line(std::string_view text) {
  constexpr std::size_t kLongest = 300;  // a description may quote the file
  std::string result(text.substr(0, kLongest));
  std::replace_if(
      result.begin(), result.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return result;
}

std::string at_line(std::string_view source_name, const toml::node& node) {
  return std::string(source_name) + ":" + std::to_string(node.source().begin.line);
}

template <class Function>
void for_each_in_file_order(const toml::table& table, Function function);

// `place` says where a node was written.
TomlValue convert(const toml::node& node,
                  const std::function<std::string(const toml::node&)>& place) {
  if (const auto* value = node.as_boolean()) return {value->get()};
  if (const auto* value = node.as_integer()) return {value->get()};
  if (const auto* value = node.as_floating_point()) return {value->get()};
  if (const auto* value = node.as_string()) return {value->get()};
  if (const auto* array = node.as_array()) {
    TomlValue::List list;
    for (const toml::node& item : *array) list.push_back(convert(item, place));
    return {std::move(list)};
  }
  if (const auto* table = node.as_table()) {
    TomlValue::Table converted;
    for_each_in_file_order(*table, [&](const std::string& name, const toml::node& value) {
      converted.names.push_back(name);
      converted.values.push_back(convert(value, place));
      converted.where.push_back(place(value));
    });
    return {std::move(converted)};
  }
  return {TomlValue::Other{node.is_time() ? "time" : "date"}};
}

toml::table parse_or_throw(std::string_view text, std::string_view source_name) {
  if (text.size() > kMaxRecipeBytes) {
    throw UsageError(std::string(source_name) + ": " + std::to_string(text.size()) +
                         " bytes are too many for a recipe; at most " +
                         std::to_string(kMaxRecipeBytes),
                     "is this a recipe? List data by globs");
  }
  if (count_dots_outside_strings(text) > kMaxDots) {
    throw UsageError(std::string(source_name) + ": more than " + std::to_string(kMaxDots) +
                     " dots in keys and numbers; is this a recipe?");
  }
  try {
    return toml::parse(text, source_name);
  } catch (const toml::parse_error& error) {
    throw UsageError(std::string(source_name) + ":" + std::to_string(error.source().begin.line) +
                         ": not valid TOML: " + on_one_line(error.description()),
                     "text goes in quotes, lists in [ ]; `troika recipe --defaults` prints an "
                     "example of every key");
  }
}

// Table iteration is alphabetical; messages should follow the file.
std::uint64_t position(const toml::node& node) {
  return (std::uint64_t{node.source().begin.line} << 32) | node.source().begin.column;
}

template <class Function>
void for_each_in_file_order(const toml::table& table, Function function) {
  std::vector<std::pair<std::string, const toml::node*>> items;
  for (const auto& [key, node] : table) items.emplace_back(std::string(key.str()), &node);
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
    return position(*a.second) < position(*b.second);
  });
  for (const auto& [key, node] : items) function(key, *node);
}

std::string override_name(std::string_view argument) {
  constexpr std::size_t kLongest = 80;
  const bool plain =
      argument.size() <= kLongest &&
      std::all_of(argument.begin(), argument.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  return "--set " + (plain ? std::string(argument) : quote(argument, kLongest));
}

// The value of "value = TEXT"; nothing where that is not TOML, or more than a value.
std::optional<TomlValue> parse_value(std::string_view text, const std::string& where) {
  if (text.size() > kMaxRecipeBytes || count_dots_outside_strings(text) > kMaxDots) return {};
  try {
    const toml::table table =
        toml::parse("value = " + std::string(text), std::string_view("--set"));
    const toml::node* value = table.get("value");
    if (value == nullptr || table.size() != 1) return {};
    return convert(*value, [&](const toml::node&) { return where; });
  } catch (const toml::parse_error&) {
    return {};
  }
}

struct Describer {
  std::string operator()(bool value) const { return value ? "boolean true" : "boolean false"; }
  std::string operator()(std::int64_t value) const { return "integer " + std::to_string(value); }
  std::string operator()(double value) const { return "number " + toml_number(value); }
  std::string operator()(const std::string& value) const {
    constexpr std::size_t kLongest = 40;
    if (value.size() <= kLongest) return "string " + toml_string(value);
    std::size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xC0U) == 0x80U) --end;
    return "string " + toml_string(value.substr(0, end) + "...");
  }
  std::string operator()(const TomlValue::List& list) const {
    return "a list of " + std::to_string(list.size());
  }
  std::string operator()(const TomlValue::Table&) const { return "a table"; }
  std::string operator()(const TomlValue::Other& other) const { return "a " + other.type; }
};

}  // namespace

std::string TomlValue::describe() const {
  return std::visit(Describer{}, data);
}

TomlSource parse_toml(std::string_view text, std::string_view source_name) {
  const toml::table root = parse_or_throw(text, source_name);
  TomlSource source;
  const auto place = [&](const toml::node& node) { return at_line(source_name, node); };
  for_each_in_file_order(root, [&](const std::string& name, const toml::node& node) {
    const toml::table* section = node.as_table();
    if (section == nullptr) {
      source.entries.push_back({"", name, convert(node, place), place(node), ""});
      return;
    }
    source.sections.push_back({name, place(node)});
    for_each_in_file_order(*section, [&](const std::string& key, const toml::node& value) {
      source.entries.push_back({name, key, convert(value, place), place(value), ""});
    });
  });
  return source;
}

TomlEntry parse_override(std::string_view argument) {
  const std::size_t equals = argument.find('=');
  const std::string where = override_name(argument);
  if (equals == std::string_view::npos || equals == 0) {
    throw UsageError(where + ": expected KEY=VALUE", "as in --set train.steps=100");
  }
  const auto trim = [](std::string_view text) {
    const std::size_t first = std::min(text.find_first_not_of(" \t"), text.size());
    const std::size_t last = text.find_last_not_of(" \t");
    return text.substr(first, last == std::string_view::npos ? 0 : last - first + 1);
  };
  const std::string_view name = trim(argument.substr(0, equals));
  const std::string_view raw = trim(argument.substr(equals + 1));
  const std::size_t dot = name.find('.');

  TomlEntry entry;
  entry.where = where;
  entry.raw = raw;
  entry.section = dot == std::string_view::npos ? "" : name.substr(0, dot);
  entry.key = dot == std::string_view::npos ? name : name.substr(dot + 1);
  std::optional<TomlValue> value = parse_value(raw, where);
  if (!value) {
    // Through the parser all the same: it refuses what is not UTF-8.
    value = parse_value(toml_string(raw), where);
    if (!value) throw UsageError(where + ": the value is not UTF-8 text, or is too long");
  }
  entry.value = *std::move(value);
  return entry;
}

}  // namespace troika
