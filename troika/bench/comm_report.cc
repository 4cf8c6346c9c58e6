#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/bench/comm_report.h>
#include <troika/bench/plot.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

using Json = nlohmann::json;

Json json_of(const CommTiming& timing) {
  return {{"engine", timing.engine},
          {"operation", timing.operation},
          {"device", timing.device},
          {"bytes", timing.bytes},
          {"ranks", timing.ranks},
          {"seconds", timing.time.count()},
          {"fastest_seconds", timing.fastest.count()},
          {"slowest_seconds", timing.slowest.count()},
          {"repeats", timing.repeats},
          {"operations_per_repeat", timing.operations_per_repeat},
          {"algorithm_bandwidth", timing.algorithm_bandwidth},
          {"bus_bandwidth", timing.bus_bandwidth}};
}

CommTiming timing_of(const Json& json) {
  CommTiming timing;
  timing.engine = json.at("engine");
  timing.operation = json.at("operation");
  timing.device = json.at("device");
  timing.bytes = json.at("bytes");
  timing.ranks = json.at("ranks");
  timing.time = Seconds(json.at("seconds").get<double>());
  timing.fastest = Seconds(json.at("fastest_seconds").get<double>());
  timing.slowest = Seconds(json.at("slowest_seconds").get<double>());
  timing.repeats = json.at("repeats");
  timing.operations_per_repeat = json.at("operations_per_repeat");
  timing.algorithm_bandwidth = json.at("algorithm_bandwidth");
  timing.bus_bandwidth = json.at("bus_bandwidth");
  return timing;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text + "  ";
}

// "3.14 us", "271 us", "12.35 ms": more digits than progress lines need.
std::string time_text(Seconds time) {
  const double seconds = time.count();
  if (seconds >= 1e-3) return format_fixed(seconds * 1e3, 2) + " ms";
  return format_fixed(seconds * 1e6, seconds < 1e-4 ? 2 : 0) + " us";
}

std::vector<std::string> distinct(const std::vector<CommTiming>& timings,
                                  std::string CommTiming::*member) {
  std::vector<std::string> names;
  for (const CommTiming& timing : timings) {
    if (std::ranges::find(names, timing.*member) == names.end()) names.push_back(timing.*member);
  }
  return names;
}

std::string formulas(const std::vector<std::string>& operations) {
  std::string text =
      "algorithm bandwidth = size / time, where size is of the larger tensor of a rank\n";
  for (const BenchOperationFacts& facts : bench_operations()) {
    if (std::ranges::find(operations, facts.name) == operations.end()) continue;
    text += "bus bandwidth of " + std::string(facts.name) + " = algorithm bandwidth x " +
            std::string(facts.factor) + "\n";
  }
  return text;
}

PlotPanel panel(const CommReport& report, const std::string& operation, PlotUnit unit) {
  const bool time = unit == PlotUnit::kSeconds;
  PlotPanel panel{operation + ", " + std::to_string(report.ranks) + " ranks",
                  "size",
                  time ? "time" : "bus bandwidth",
                  PlotUnit::kBytes,
                  unit,
                  {}};
  for (const std::string& engine : distinct(report.timings, &CommTiming::engine)) {
    PlotSeries series{engine, {}};
    for (const CommTiming& timing : report.timings) {
      if (timing.engine != engine || timing.operation != operation) continue;
      series.points.emplace_back(static_cast<double>(timing.bytes),
                                 time ? timing.time.count() : timing.bus_bandwidth);
    }
    panel.series.push_back(std::move(series));
  }
  return panel;
}

// " on cuda" where the tensors lie on devices.
std::string place_text(const std::vector<CommTiming>& timings) {
  if (timings.empty() || timings.front().device == "cpu") return "";
  const std::string& device = timings.front().device;
  return " on " + device.substr(0, device.find(':'));
}

}  // namespace

std::string to_text(const CommReport& report) {
  std::string text = std::to_string(report.ranks) + " ranks, host " + report.host + ", fp32" +
                     place_text(report.timings) +
                     "; every result was checked; times are medians of repeats, each the "
                     "slowest rank's\n\n";
  std::size_t engine_width = 6;
  for (const CommTiming& timing : report.timings) {
    engine_width = std::max(engine_width, timing.engine.size());
  }
  text += padded("operation", 14) + padded("size", 9) + padded("engine", engine_width) +
          padded("time", 12) + padded("fastest", 12) + padded("algorithm", 11) + "bus\n";
  const auto& timings = report.timings;
  // The engines beside each other, for every operation and size.
  for (const CommTiming& first : timings) {
    if (first.engine != timings.front().engine) continue;
    for (const CommTiming& each : timings) {
      if (each.operation != first.operation || each.bytes != first.bytes) continue;
      text += padded(each.operation, 14) +
              padded(format_bytes(static_cast<std::uint64_t>(each.bytes)), 9) +
              padded(each.engine, engine_width) + padded(time_text(each.time), 12) +
              padded(time_text(each.fastest), 12) +
              padded(format_bandwidth(each.algorithm_bandwidth), 11) +
              format_bandwidth(each.bus_bandwidth) + "\n";
    }
  }
  text += "\n" + formulas(distinct(timings, &CommTiming::operation));
  for (const auto& [engine, reason] : report.left_out) {
    text.append("not measured: ").append(engine).append(": ").append(reason).append("\n");
  }
  return text;
}

std::string to_json(const CommReport& report) {
  Json json{{"host", report.host}, {"ranks", report.ranks}, {"checked", true}};
  json["results"] = Json::parse(encode(report.timings));
  json["left_out"] = Json::array();
  for (const auto& [engine, reason] : report.left_out) {
    json["left_out"].push_back({{"engine", engine}, {"reason", reason}});
  }
  Json& formula = json["bus_bandwidth_formula"];
  for (const BenchOperationFacts& facts : bench_operations()) {
    formula[std::string(facts.name)] = "bytes / seconds * " + std::string(facts.factor);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_svg(const CommReport& report) {
  std::vector<PlotPanel> panels;
  for (const std::string& operation : distinct(report.timings, &CommTiming::operation)) {
    panels.push_back(panel(report, operation, PlotUnit::kSeconds));
    panels.push_back(panel(report, operation, PlotUnit::kBytesPerSecond));
  }
  return plot_svg(panels);
}

std::string encode(std::span<const CommTiming> timings) {
  Json json = Json::array();
  for (const CommTiming& timing : timings) json.push_back(json_of(timing));
  return json.dump();
}

std::vector<CommTiming> decode_timings(std::string_view text) {
  try {
    std::vector<CommTiming> timings;
    for (const Json& each : Json::parse(text)) timings.push_back(timing_of(each));
    return timings;
  } catch (const Json::exception&) {
    throw DataError("a rank's timings are malformed: " + quote(text));
  }
}

}  // namespace troika
