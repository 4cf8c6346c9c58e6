// Internal: how tokens become text again: the section "decoder".
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace troika::hub_tokenizer_plugin {

// A row of changes to the tokens, which are then joined. Const access is thread safe.
class Decoder {
 public:
  // Reads the section, which may be null: tokens then stand apart by spaces. Throws
  // std::runtime_error naming a type that is unknown.
  explicit Decoder(const nlohmann::json& section);

  [[nodiscard]] std::string decode(std::vector<std::string> tokens) const;

 private:
  using Tokens = std::vector<std::string>;
  using Step = std::function<Tokens(Tokens)>;
  void add(const nlohmann::json& section);

  std::vector<Step> steps_;
};

}  // namespace troika::hub_tokenizer_plugin
