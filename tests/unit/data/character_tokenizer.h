// A tokenizer for tests: a token for each printable character of ASCII, and special tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace troika {

// Returns a tokenizer.json of printable characters, behind these special tokens.
inline std::string characters_json(const std::vector<std::string>& controls) {
  nlohmann::json added = nlohmann::json::array(), vocabulary;
  for (const std::string& each : controls) {
    added.push_back({{"id", added.size()}, {"content", each}, {"special", true}});
  }
  for (char c = ' '; c <= '~'; ++c) {
    vocabulary[std::string(1, c)] = added.size() + vocabulary.size();
  }
  vocabulary["\n"] = added.size() + vocabulary.size();
  return nlohmann::json{
      {"added_tokens", added},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}},
      {"decoder", {{"type", "Fuse"}}}}
      .dump();
}

}  // namespace troika
