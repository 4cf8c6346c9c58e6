// What `troika bench comm` shows: a table, one line of JSON, and a plot.
#pragma once

#include <troika/bench/comm_bench.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct CommReport {
  std::string host;
  int ranks = 0;
  std::vector<CommTiming> timings;
  // An engine without figures, and the reason.
  struct SkippedEngine {
    std::string engine, reason;
  };
  std::vector<SkippedEngine> left_out;
};

[[nodiscard]] std::string to_text(const CommReport& report);
// Returns one line.
[[nodiscard]] std::string to_json(const CommReport& report);
// Draws time and bus bandwidth over sizes, an operation a row, a line an engine: SVG.
[[nodiscard]] std::string to_svg(const CommReport& report);

// Encode timings on their way from a rank to its launcher, and decode them. Decoding throws
// DataError on anything else.
[[nodiscard]] std::string encode(std::span<const CommTiming> timings);
[[nodiscard]] std::vector<CommTiming> decode_timings(std::string_view json);

}  // namespace troika
