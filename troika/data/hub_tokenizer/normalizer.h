// Internal: what is done to a text before it is cut into words: the section "normalizer".
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace troika::hub_tokenizer_plugin {

using Json = nlohmann::json;

// A row of changes. Const access is thread safe.
class Normalizer {
 public:
  // Reads the section, which may be null. Throws std::runtime_error naming a type that is unknown.
  explicit Normalizer(const Json& section);

  // Changes valid UTF-8.
  [[nodiscard]] std::string apply(std::string text) const;

 private:
  using Step = std::function<std::string(std::string)>;
  void add(const Json& section);

  std::vector<Step> steps_;
};

}  // namespace troika::hub_tokenizer_plugin
