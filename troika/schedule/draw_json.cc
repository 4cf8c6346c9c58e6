#include <troika/schedule/draw.h>

#include <nlohmann/json.hpp>

namespace troika {
namespace {

constexpr double kMicroseconds = 1000;  // in a millisecond

std::string number(double value) {
  return nlohmann::json(value).dump();
}
std::string string(std::string_view value) {
  return nlohmann::json(value).dump();
}

// {"name":value,...} of values that are JSON already.
class Object {
 public:
  Object& add(std::string_view name, const std::string& value) {
    text_ += (text_.empty() ? "{" : ",") + string(name) + ":" + value;
    return *this;
  }
  Object& add(std::string_view name, double value) { return add(name, number(value)); }
  Object& add(std::string_view name, int value) { return add(name, std::to_string(value)); }
  [[nodiscard]] std::string close() const { return text_ + "}"; }

 private:
  std::string text_;
};

void append(std::string& list, const std::string& element, std::string_view separator = ",") {
  if (!list.empty()) list += separator;
  list += element;
}

std::string to_json(const TimedAction& timed) {
  const std::string_view kind = timed.action.kind == ActionKind::kBackward
                                    ? std::string_view("BW")
                                    : name_of(timed.action.kind);
  return Object()
      .add("kind", string(kind))
      .add("stage", timed.action.stage)
      .add("microbatch", timed.action.microbatch)
      .add("start", timed.start)
      .add("end", timed.end)
      .close();
}

// What is the same in all events of a rank.
Object event(std::string_view phase, const std::string& name, int rank) {
  return Object().add("ph", string(phase)).add("name", string(name)).add("pid", rank).add("tid", 0);
}

void append_rank(std::string& events, int rank, const RankTimes& times, int chunks) {
  constexpr std::string_view kLine = ",\n";
  const auto named = [&](const std::string& what, const std::string& arguments) {
    append(events, event("M", what, rank).add("args", arguments).close(), kLine);
  };
  named("process_name", Object().add("name", string("rank " + std::to_string(rank))).close());
  named("process_sort_index", Object().add("sort_index", rank).close());
  named("thread_name", Object().add("name", string("compute")).close());
  int alive = 0;
  const auto count = [&](int more, double when) {
    alive += more;
    const double microbatches = static_cast<double>(alive) / chunks;
    append(events,
           event("C", "activations", rank)
               .add("ts", when * kMicroseconds)
               .add("args", Object().add("microbatches", microbatches).close())
               .close(),
           kLine);
  };
  for (const TimedAction& timed : times.actions) {
    if (timed.action.kind == ActionKind::kForward) count(1, timed.start);
    append(events,
           event("X", describe(timed.action), rank)
               .add("ts", timed.start * kMicroseconds)
               .add("dur", (timed.end - timed.start) * kMicroseconds)
               .close(),
           kLine);
    if (timed.action.makes_weight_gradient()) count(-1, timed.end);
  }
}

}  // namespace

std::string to_json(const Schedule& schedule, const Simulation& simulation) {
  std::string ranks;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const RankTimes& times = simulation.ranks[rank];
    std::string actions;
    for (const TimedAction& timed : times.actions) append(actions, to_json(timed));
    append(ranks, Object()
                      .add("rank", static_cast<int>(rank))
                      .add("first_start", times.first_start)
                      .add("last_end", times.last_end)
                      .add("span", times.span())
                      .add("busy", times.busy)
                      .add("peak_activations", times.peak_activations)
                      .add("actions", "[" + actions + "]")
                      .close());
  }
  return Object()
      .add("schedule", string(schedule.name))
      .add("stages", schedule.ranks)
      .add("virtual_stages", schedule.chunks)
      .add("microbatches", schedule.microbatches)
      .add("makespan", simulation.makespan)
      .add("longest_span", simulation.longest_span)
      .add("bubble_makespan", simulation.bubble_makespan)
      .add("bubble_cost", simulation.bubble_cost)
      .add("peak_activations", simulation.peak_activations)
      .add("ranks", "[" + ranks + "]")
      .close();
}

std::string to_trace(const Schedule& schedule, const Simulation& simulation) {
  std::string events;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    append_rank(events, static_cast<int>(rank), simulation.ranks[rank], schedule.chunks);
  }
  const std::string about = Object()
                                .add("schedule", string(schedule.name))
                                .add("makespan_ms", simulation.makespan)
                                .close();
  return R"({"displayTimeUnit":"ms","otherData":)" + about + ",\"traceEvents\":[\n" + events +
         "\n]}\n";
}

}  // namespace troika
