// Writes a trace in the format of Chrome's trace viewer and Perfetto.
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/observe/trace.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

constexpr std::uint64_t kMaxTraceBytes = std::uint64_t{4} << 30;
constexpr int kLanesOfTrack = 1000;  // thread ids: track * this + lane

std::string_view name_of(Track track) {
  switch (track) {
    case Track::kStep:
      return "step";
    case Track::kForward:
      return "forward";
    case Track::kBackward:
      return "backward";
    case Track::kCommunication:
      return "communication";
    case Track::kOptimizer:
      return "optimiser";
    case Track::kData:
      return "data";
  }
  return "other";
}

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Nanoseconds as decimal microseconds, exactly.
std::string microseconds(std::int64_t nanoseconds) {
  const std::string rest = std::to_string(nanoseconds % 1000);
  return std::to_string(nanoseconds / 1000) + "." + std::string(3 - rest.size(), '0') + rest;
}

std::string metadata_event(std::string_view what, int process, int thread,
                           const std::string& arguments) {
  return "{\"ph\":\"M\",\"name\":" + json_text(what) + ",\"pid\":" + std::to_string(process) +
         ",\"tid\":" + std::to_string(thread) + ",\"args\":{" + arguments + "}}";
}

}  // namespace

std::vector<Trace::Lane> Trace::lanes_of(const std::vector<Event>& events) {
  std::vector<const Event*> sorted;
  for (const Event& event : events) sorted.push_back(&event);
  // Those that hold others come before them.
  std::stable_sort(sorted.begin(), sorted.end(), [](const Event* a, const Event* b) {
    return a->started != b->started ? a->started < b->started : a->finished > b->finished;
  });
  struct OpenLane {
    Lane lane;
    std::vector<std::int64_t> ends;  // of the spans that hold the last one, from outside in
  };
  std::map<Track, std::vector<OpenLane>> open;
  for (const Event* event : sorted) {
    std::vector<OpenLane>& lanes = open[event->track];
    const auto fits = [event](OpenLane& lane) {
      while (!lane.ends.empty() && lane.ends.back() <= event->started) lane.ends.pop_back();
      return lane.ends.empty() || event->finished <= lane.ends.back();
    };
    auto lane = std::find_if(lanes.begin(), lanes.end(), fits);
    if (lane == lanes.end()) {
      lanes.push_back({{event->track, static_cast<int>(lanes.size()), {}}, {}});
      lane = std::prev(lanes.end());
    }
    lane->lane.events.push_back(event);
    lane->ends.push_back(event->finished);
  }
  std::vector<Lane> result;
  for (auto& [track, lanes] : open) {
    for (OpenLane& lane : lanes) result.push_back(std::move(lane.lane));
  }
  return result;
}

std::string Trace::json() const {
  const std::lock_guard lock(mutex_);
  const std::string process = std::to_string(options_.rank);
  std::string events =
      metadata_event("process_name", options_.rank, 0,
                     "\"name\":" + json_text("rank " + process + " (" + options_.host + ")")) +
      ",\n" + metadata_event("process_sort_index", options_.rank, 0, "\"sort_index\":" + process);
  for (const Lane& lane : lanes_of(events_)) {
    const int thread = static_cast<int>(lane.track) * kLanesOfTrack + lane.number;
    std::string name(name_of(lane.track));
    if (lane.number > 0) name += " " + std::to_string(lane.number + 1);
    events +=
        ",\n" + metadata_event("thread_name", options_.rank, thread, "\"name\":" + json_text(name));
    events += ",\n" + metadata_event("thread_sort_index", options_.rank, thread,
                                     "\"sort_index\":" + std::to_string(thread));
    for (const Event* event : lane.events) {
      events += ",\n{\"ph\":\"X\",\"name\":" + json_text(event->name) +
                ",\"cat\":" + json_text(name_of(event->track)) + ",\"pid\":" + process +
                ",\"tid\":" + std::to_string(thread) + ",\"ts\":" + microseconds(event->started) +
                ",\"dur\":" + microseconds(event->finished - event->started);
      if (event->bytes) events += ",\"args\":{\"bytes\":" + std::to_string(*event->bytes) + "}";
      events += "}";
    }
  }
  return "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"rank\":" + process +
         ",\"host\":" + json_text(options_.host) +
         ",\"dropped_spans\":" + std::to_string(dropped_) + "},\"traceEvents\":[\n" + events +
         "\n]}\n";
}

void Trace::write(const std::filesystem::path& path) const {
  write_file_atomically(path, json());
}

std::filesystem::path trace_path(const std::filesystem::path& run_folder, int rank) {
  return run_folder / ("trace-rank-" + std::to_string(rank) + ".json");
}

void merge_traces(std::span<const std::filesystem::path> parts,
                  const std::filesystem::path& merged) {
  nlohmann::json events = nlohmann::json::array();
  for (const std::filesystem::path& part : parts) {
    nlohmann::json trace =
        nlohmann::json::parse(read_file(part, kMaxTraceBytes), nullptr, /*allow_exceptions=*/false);
    if (!trace.is_object() || !trace["traceEvents"].is_array()) {
      throw DataError(quote(part.string()) + " is no trace: it holds no array traceEvents",
                      "merge the trace-rank-*.json files of one run");
    }
    for (nlohmann::json& event : trace["traceEvents"]) events.push_back(std::move(event));
  }
  const nlohmann::json whole = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  write_file_atomically(
      merged, whole.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace troika
