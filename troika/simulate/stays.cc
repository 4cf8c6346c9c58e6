#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/simulate/stays.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace troika {
namespace {

template <class T>
std::optional<T> number_in(std::string_view text) {
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void fail_leave(const std::string& text, const std::string& why) {
  throw UsageError("--leave: " + quote(text) + " " + why,
                   "write the worker and the second at which it leaves: --leave 1@600");
}

void add_leave(std::vector<WorkerStay>& stays, const std::string& text) {
  const std::size_t sign = text.find('@');
  if (sign == std::string::npos) fail_leave(text, "is not WORKER@SECONDS");
  const auto worker = number_in<std::int64_t>(std::string_view(text).substr(0, sign));
  const auto seconds = number_in<double>(std::string_view(text).substr(sign + 1));
  if (!worker || !seconds || !std::isfinite(*seconds)) fail_leave(text, "is not WORKER@SECONDS");
  if (*worker < 0 || *worker >= std::ssize(stays)) {
    fail_leave(text, "names a worker that there is not: they are 0 to " +
                         std::to_string(std::ssize(stays) - 1));
  }
  WorkerStay& stay = stays[static_cast<std::size_t>(*worker)];
  if (std::isfinite(stay.leaves)) fail_leave(text, "names a worker that has left already");
  if (*seconds <= stay.joins) fail_leave(text, "is no later than that worker joins");
  stay.leaves = *seconds;
}

}  // namespace

std::vector<WorkerStay> worker_stays(int starting, std::vector<double> joins,
                                     std::span<const std::string> leaves) {
  if (joins.empty() && leaves.empty()) return {};
  std::ranges::sort(joins);
  std::vector<WorkerStay> stays(static_cast<std::size_t>(starting));
  for (const double seconds : joins) {
    if (!(seconds > 0) || !std::isfinite(seconds)) {
      throw UsageError("--join: a worker joins after the start, at a second above 0",
                       "workers that are there from the start are --workers");
    }
    stays.push_back({seconds});
  }
  for (const std::string& each : leaves) add_leave(stays, each);
  return stays;
}

}  // namespace troika
