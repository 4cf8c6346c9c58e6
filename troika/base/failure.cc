#include <troika/base/failure.h>
#include <troika/base/units.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <new>
#include <optional>
#include <string_view>

namespace troika {
namespace {

// As LibTorch's allocators and size computations word it. Their types are not known here.
constexpr auto kNoMemory =
    std::to_array<std::string_view>({"can't allocate memory", "not enough memory", "out of memory",
                                     "Storage size calculation", "larger than max_size"});

std::string_view first_line(std::string_view text) {
  return text.substr(0, std::min(text.find('\n'), text.size()));
}

// "[enforce fail at alloc_cpu.cpp:127] err == 0. What happened" is where, a condition, and what.
std::string_view without_place(std::string_view line) {
  constexpr std::string_view kPlace = "[enforce fail at ";
  const std::size_t end = line.find("] ");
  if (!line.starts_with(kPlace) || end == std::string_view::npos) return line;
  const std::string_view rest = line.substr(end + 2);
  const std::size_t condition = rest.find(". ");
  return condition == std::string_view::npos ? rest : rest.substr(condition + 2);
}

// "... you tried to allocate 4096 bytes ..."
std::optional<std::uint64_t> bytes_wanted(std::string_view line) {
  constexpr std::string_view kBefore = "tried to allocate ";
  const std::size_t at = line.find(kBefore);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = line.substr(at + kBefore.size());
  std::uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), bytes);
  const std::string_view behind(end, static_cast<std::size_t>(rest.data() + rest.size() - end));
  if (error != std::errc() || !behind.starts_with(" bytes")) return std::nullopt;
  return bytes;
}

Failure out_of_memory(std::optional<std::uint64_t> bytes) {
  return {ExitCode::kInternal,
          "out of memory" + (bytes ? ": " + format_bytes(*bytes) + " asked for at once" : ""),
          "a smaller model, micro_batch_size or seq_len needs less", false};
}

}  // namespace

Failure failure_of(const std::exception& error) {
  if (const auto* typed = dynamic_cast<const Error*>(&error)) {
    const bool secondary = dynamic_cast<const PeerError*>(&error) != nullptr ||
                           dynamic_cast<const DeadlineError*>(&error) != nullptr;
    return {typed->code(), typed->what(), typed->hint(), secondary};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return out_of_memory(std::nullopt);
  const std::string_view line = first_line(error.what());
  const bool no_memory = std::any_of(kNoMemory.begin(), kNoMemory.end(), [&](auto words) {
    return line.find(words) != std::string_view::npos;
  });
  if (no_memory) return out_of_memory(bytes_wanted(line));
  return {ExitCode::kInternal, "internal error: " + std::string(without_place(line)),
          "this is a bug in troika; please report it with the command and the recipe", false};
}

}  // namespace troika
