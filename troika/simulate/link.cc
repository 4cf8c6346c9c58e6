#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/simulate/link.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>

namespace troika {
namespace {

struct LinkUnit {
  std::string_view name;
  double factor;
  bool is_rate;  // else a time
};
constexpr std::array<LinkUnit, 11> kLinkUnits = {{{"bit/s", 1 / 8., true},
                                                  {"kbit/s", 1e3 / 8, true},
                                                  {"Mbit/s", 1e6 / 8, true},
                                                  {"Gbit/s", 1e9 / 8, true},
                                                  {"B/s", 1, true},
                                                  {"kB/s", 1e3, true},
                                                  {"MB/s", 1e6, true},
                                                  {"GB/s", 1e9, true},
                                                  {"s", 1, false},
                                                  {"ms", 1e-3, false},
                                                  {"us", 1e-6, false}}};
constexpr double kLongestLatency = 3600;  // s
// Up to so many bytes for its peers a rank sends its tensor to all of them.
constexpr double kAtOnceBytes = 256 << 10;

[[noreturn]] void fail_link(std::string_view text, const std::string& why) {
  throw UsageError("--link: " + quote(text) + " " + why,
                   "write a rate and a latency: --link \"200Mbit/s 5ms\"");
}

// Removes the next word from the text.
std::string_view next_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  return word;
}

}  // namespace

Link parse_link(std::string_view text) {
  Link link;
  bool has_rate = false, has_latency = false;
  std::string_view rest = text;
  for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
    double number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || !std::isfinite(number)) fail_link(text, "is no link");
    const std::string_view name = word.substr(static_cast<std::size_t>(end - word.data()));
    const LinkUnit* unit = nullptr;
    for (const LinkUnit& each : kLinkUnits) {
      if (each.name == name) unit = &each;
    }
    if (name.empty()) fail_link(text, "has a number without a unit");
    if (unit == nullptr)
      fail_link(text, "has the unit " + quote(name, 20) + ", which is none of a link");
    bool& has = unit->is_rate ? has_rate : has_latency;
    if (has) fail_link(text, unit->is_rate ? "has two rates" : "has two latencies");
    has = true;
    if (unit->is_rate) {
      if (number <= 0) fail_link(text, "has a rate of nothing");
      link.bytes_per_second = number * unit->factor;
    } else {
      link.latency = number * unit->factor;
      if (number < 0 || link.latency > kLongestLatency) {
        fail_link(text, "has a latency that is not from 0 to an hour");
      }
    }
  }
  if (!has_rate && !has_latency) fail_link(text, "is no link");
  return link;
}

CollectiveCost all_reduce_cost(const Link& link, int ranks, double bytes) {
  if (ranks == 1) return {};
  const double at_once = (ranks - 1) * bytes;
  if (at_once <= kAtOnceBytes) return {2 * link.latency + link.seconds(at_once), at_once};
  const double sent = 2. * (ranks - 1) / ranks * bytes;
  return {3 * link.latency + link.seconds(sent), sent};
}

}  // namespace troika
