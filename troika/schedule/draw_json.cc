// Writes a simulated schedule as JSON, and as a trace for Chrome's viewer.
#include <troika/schedule/draw.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicroseconds = 1000;  // in a millisecond

Json json_of(const TimedAction& timed) {
  const bool whole = timed.action.kind == ActionKind::kBackward;
  return {{"kind", whole ? std::string_view("BW") : name_of(timed.action.kind)},
          {"stage", timed.action.stage},
          {"microbatch", timed.action.microbatch},
          {"start", timed.start},
          {"end", timed.end}};
}

Json json_of(int rank, const RankTimes& times) {
  Json json = {{"rank", rank},
               {"first_start", times.first_start},
               {"last_end", times.last_end},
               {"span", times.span()},
               {"busy", times.busy},
               {"peak_activations", times.peak_activations},
               {"actions", Json::array()}};
  for (const TimedAction& timed : times.actions) json["actions"].push_back(json_of(timed));
  return json;
}

// The events of a trace, a line each: it has many.
class Events {
 public:
  void add(std::string_view phase, std::string_view name, int rank, const Json& more) {
    Json event = {{"ph", phase}, {"name", name}, {"pid", rank}, {"tid", 0}};
    event.update(more);
    text_ += (text_.empty() ? "" : ",\n") + event.dump();
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_rank(Events& events, int rank, const RankTimes& times, int virtual_stages) {
  const std::string name = "rank " + std::to_string(rank);
  events.add("M", "process_name", rank, {{"args", {{"name", name}}}});
  events.add("M", "process_sort_index", rank, {{"args", {{"sort_index", rank}}}});
  events.add("M", "thread_name", rank, {{"args", {{"name", "compute"}}}});
  int alive = 0;
  const auto count = [&](int more, double when) {
    if (more == 0) return;
    alive += more;
    events.add("C", "activations", rank,
               {{"ts", when * kMicroseconds},
                {"args", {{"microbatches", static_cast<double>(alive) / virtual_stages}}}});
  };
  for (const TimedAction& timed : times.actions) {
    const int more = timed.action.activations();
    count(std::max(more, 0), timed.start);
    events.add(
        "X", describe(timed.action), rank,
        {{"ts", timed.start * kMicroseconds}, {"dur", (timed.end - timed.start) * kMicroseconds}});
    count(std::min(more, 0), timed.end);
  }
}

}  // namespace

std::string to_json(const Schedule& schedule, const Simulation& simulation) {
  Json json = {{"schedule", schedule.name},
               {"stages", schedule.ranks},
               {"virtual_stages", schedule.virtual_stages},
               {"microbatches", schedule.microbatches},
               {"makespan", simulation.makespan},
               {"longest_span", simulation.longest_span},
               {"bubble_makespan", simulation.bubble_makespan},
               {"bubble_cost", simulation.bubble_cost},
               {"peak_activations", simulation.peak_activations},
               {"ranks", Json::array()}};
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    json["ranks"].push_back(json_of(static_cast<int>(rank), simulation.ranks[rank]));
  }
  return json.dump();
}

std::string to_trace(const Schedule& schedule, const Simulation& simulation) {
  Events events;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    add_rank(events, static_cast<int>(rank), simulation.ranks[rank], schedule.virtual_stages);
  }
  const Json about = {{"schedule", schedule.name}, {"makespan_ms", simulation.makespan}};
  return R"({"displayTimeUnit":"ms","otherData":)" + about.dump() + ",\"traceEvents\":[\n" +
         events.text() + "\n]}\n";
}

}  // namespace troika
