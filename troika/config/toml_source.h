// A recipe file and its overrides as a flat list of keys with values and places, before anything is
// known about which keys exist. The only part that sees the TOML parser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troika {

// A value as it was written.
struct TomlValue {
  using List = std::vector<TomlValue>;
  struct Table {  // in the order of the text
    std::vector<std::string> names;
    std::vector<TomlValue> values;
    std::vector<std::string> where;  // of each: "FILE:LINE" or "--set KEY=VALUE"
  };
  struct Other {  // what no key of a recipe takes: a date, a time
    std::string type;
  };
  std::variant<bool, std::int64_t, double, std::string, List, Table, Other> data;

  // "integer 5", "string \"six\"", "list", "table": for messages.
  [[nodiscard]] std::string describe() const;
};

// One key. `where` is "FILE:LINE" or "--set KEY=VALUE".
struct TomlEntry {
  std::string section;  // empty: before the first section
  std::string key;
  TomlValue value;
  std::string where;
  std::string raw;  // an override's VALUE as typed; empty for a file's
};

struct TomlSection {
  std::string name;
  std::string where;
};

// The entries and sections of a text, in its order.
struct TomlSource {
  std::vector<TomlEntry> entries;
  std::vector<TomlSection> sections;
};

// The longest recipe that is read.
inline constexpr std::size_t kMaxRecipeBytes = 1 << 20;

// Parses a text. Throws UsageError naming `source_name` and the line when `text` is not TOML, is
// too long or is nested too deeply.
[[nodiscard]] TomlSource parse_toml(std::string_view text, std::string_view source_name);

// Reads "section.key=VALUE" or "key=VALUE": VALUE as TOML, and where that fails as a string. Throws
// UsageError when there is no '=', no key, or when it is not UTF-8.
[[nodiscard]] TomlEntry parse_override(std::string_view argument);

}  // namespace troika
