// Remembers where each key of a recipe was written, so that checks made long after reading still
// name file, line and key.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

namespace troika {

class Origins {
 public:
  // Takes the source that stands for keys that were not written anywhere.
  explicit Origins(std::string source = "recipe") : source_(std::move(source)) {}

  // Records where a key was written: "FILE:LINE" or "--set KEY=VALUE".
  void set(const std::string& full_key, std::string where) { where_[full_key] = std::move(where); }
  [[nodiscard]] bool has(std::string_view full_key) const { return where_.contains(full_key); }
  // Returns the place of the first of `full_keys` that was written, else the source.
  [[nodiscard]] const std::string& where(std::initializer_list<std::string_view> full_keys) const;

  // Throws UsageError "WHERE: [SECTION] MESSAGE"; the section is that of the first key.
  [[noreturn]] void fail(std::initializer_list<std::string_view> full_keys,
                         const std::string& message, const std::string& hint = {}) const;

 private:
  std::string source_;
  std::map<std::string, std::string, std::less<>> where_;
};

}  // namespace troika
