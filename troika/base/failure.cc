#include <troika/base/failure.h>
#include <troika/base/process_limit.h>
#include <troika/base/units.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

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

constexpr std::string_view kSecondary = "secondary";

std::string with_breaks_as(char to, char from, std::string text) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

// Takes one line off the front.
std::string_view take_first_line(std::string_view& text) {
  const std::string_view line = first_line(text);
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

ExitCode code_of(std::string_view number) {
  int value = -1;
  std::from_chars(number.data(), number.data() + number.size(), value);
  for (const ExitCode code : {ExitCode::kUsage, ExitCode::kData, ExitCode::kRendezvous,
                              ExitCode::kRankDied, ExitCode::kNonFinite, ExitCode::kStorage,
                              ExitCode::kCheckpointed, ExitCode::kInterrupted}) {
    if (static_cast<int>(code) == value) return code;
  }
  return ExitCode::kInternal;
}

}  // namespace

Failure failure_of(const std::exception& error) {
  if (const auto* typed = dynamic_cast<const Error*>(&error)) {
    const bool secondary = dynamic_cast<const PeerError*>(&error) != nullptr ||
                           dynamic_cast<const DeadlineError*>(&error) != nullptr;
    return {typed->code(), typed->what(), typed->hint(), secondary};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return out_of_memory(std::nullopt);
  // So std::thread says it.
  if (const auto* system = dynamic_cast<const std::system_error*>(&error);
      system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return {ExitCode::kUsage, too_many_processes("this process"), process_limit_hint(), false};
  }
  const std::string_view line = first_line(error.what());
  const bool no_memory = std::any_of(kNoMemory.begin(), kNoMemory.end(), [&](auto words) {
    return line.find(words) != std::string_view::npos;
  });
  if (no_memory) return out_of_memory(bytes_wanted(line));
  return {ExitCode::kInternal, "internal error: " + std::string(without_place(line)),
          "this is a bug in troika; please report it with the command and the recipe", false};
}

Failure peer_failure(std::string message, std::string hint) {
  return {ExitCode::kRendezvous, std::move(message), std::move(hint), true};
}

void throw_failure(const Failure& failure) {
  const auto& [code, message, hint, secondary] = failure;
  if (secondary) throw PeerError(message, hint);
  switch (code) {
    case ExitCode::kUsage:
      throw UsageError(message, hint);
    case ExitCode::kData:
      throw DataError(message, hint);
    case ExitCode::kRendezvous:
      throw RendezvousError(message, hint);
    case ExitCode::kRankDied:
      throw RankDiedError(message, hint);
    case ExitCode::kNonFinite:
      throw NonFiniteError(message, hint);
    case ExitCode::kStorage:
      throw StorageError(message, hint);
    case ExitCode::kInterrupted:
      throw InterruptedError(message, hint);
    case ExitCode::kCheckpointed:
      throw CheckpointedError(message, hint);
    case ExitCode::kInternal:
      throw InternalError(message, hint);
    default:
      throw Error(code, message, hint);
  }
}

std::string encode(const Failure& failure) {
  return with_breaks_as('\v', '\n', failure.message) + "\n" +
         with_breaks_as('\v', '\n', failure.hint) + "\n" +
         std::to_string(static_cast<int>(failure.code)) +
         (failure.secondary ? " " + std::string(kSecondary) : "");
}

Failure decode_failure(std::string_view text) {
  const auto next = [&] { return with_breaks_as('\n', '\v', std::string(take_first_line(text))); };
  std::string message = next(), hint = next();
  if (text.empty()) return peer_failure(std::move(message), std::move(hint));
  const std::string_view code = take_first_line(text);
  return {code_of(code), std::move(message), std::move(hint), code.ends_with(kSecondary)};
}

}  // namespace troika
