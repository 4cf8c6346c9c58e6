#include <troika/base/text.h>
#include <troika/config/nearest_key.h>

#include <algorithm>
#include <cstddef>

namespace troika {
namespace {

constexpr std::size_t kShortestPart = 4;

bool is_part(std::string_view part, std::string_view word) {
  return part.size() >= kShortestPart && word.find(part) != std::string_view::npos;
}

}  // namespace

std::optional<std::string> nearest_key(std::string_view word,
                                       std::span<const std::string_view> keys) {
  if (auto likely = nearest(word, keys)) return likely;
  auto found = std::ranges::find_if(
      keys, [&](std::string_view key) { return is_part(word, key) && key.starts_with(word); });
  if (found == keys.end()) {
    found = std::ranges::find_if(
        keys, [&](std::string_view key) { return is_part(word, key) || is_part(key, word); });
  }
  if (found == keys.end()) return std::nullopt;
  return std::string(*found);
}

}  // namespace troika
