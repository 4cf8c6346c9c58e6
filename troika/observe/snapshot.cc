#include <troika/base/error.h>
#include <troika/base/time.h>
#include <troika/base/units.h>
#include <troika/observe/snapshot.h>

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>

namespace troika {
namespace {

using Json = nlohmann::json;

// Enough to tell where the others are, for any number of operations under way.
constexpr std::size_t kSent = 64;

// Seconds since 1970 at which this kernel was booted; 0 if it does not say.
std::int64_t boot_seconds() {
  std::ifstream stat("/proc/stat");
  std::string word;
  std::int64_t seconds = 0;
  while (stat >> word) {
    if (word == "btime" && stat >> seconds) return seconds;
  }
  return 0;
}

ProcessState state_of(char letter) {
  switch (letter) {
    case 'R':
      return ProcessState::kRuns;
    case 'S':
    case 'D':
    case 'I':
      return ProcessState::kSleeps;
    case 'T':
    case 't':
      return ProcessState::kStopped;
    case 'Z':
    case 'X':
      return ProcessState::kEnded;
    default:
      return ProcessState::kUnknown;
  }
}

Json row_of(const RecordedOperation& operation) {
  return {operation.sequence,   static_cast<int>(operation.state),
          operation.started,    operation.finished,
          operation.bytes,      operation.elements,
          operation.dtype,      operation.sent,
          operation.steps,      operation.place,
          operation.generation, operation.signature,
          operation.operation,  operation.axis,
          operation.label,      operation.group};
}

RecordedOperation operation_of(const Json& json) {
  RecordedOperation operation;
  const int state = json.at(1).get<int>();
  if (state < 0 || state > 2) throw DataError("no such state of an operation");
  operation.sequence = json.at(0);
  operation.state = static_cast<RecordedOperation::State>(state);
  operation.started = json.at(2);
  operation.finished = json.at(3);
  operation.bytes = json.at(4);
  operation.elements = json.at(5);
  operation.dtype = json.at(6);
  operation.sent = json.at(7);
  operation.steps = json.at(8);
  operation.place = json.at(9);
  operation.generation = json.at(10);
  operation.signature = json.at(11);
  operation.operation = json.at(12);
  operation.axis = json.at(13);
  operation.label = json.at(14);
  operation.group = json.at(15);
  return operation;
}

}  // namespace

ProcessState process_state(int pid, std::int64_t started) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (pid <= 0 || !std::getline(file, text)) return ProcessState::kEnded;
  // The name, in parentheses, may hold anything. See proc(5).
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return ProcessState::kUnknown;
  std::istringstream fields(text.substr(name_end + 1));
  char letter = '?';
  fields >> letter;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  fields >> ticks;
  const std::int64_t boot = boot_seconds();
  const double began =
      static_cast<double>(boot) + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  // The kernel's two clocks agree to about a second.
  constexpr double kClocks = 2;
  if (boot > 0 && fields && began > static_cast<double>(started) / 1e9 + kClocks) {
    return ProcessState::kEnded;
  }
  return state_of(letter);
}

std::optional<RankSnapshot> take_snapshot(const std::filesystem::path& recorder) {
  try {
    RankSnapshot snapshot{read_recorder(recorder), ProcessState::kUnknown, wall_nanoseconds()};
    snapshot.process = process_state(snapshot.recording.process_id, snapshot.recording.created);
    return snapshot;
  } catch (const Error&) {
    return std::nullopt;
  }
}

RankSnapshot look_at_process(int rank, int pid) {
  RankSnapshot snapshot;
  snapshot.recording.rank = rank;
  snapshot.recording.process_id = pid;
  snapshot.taken = wall_nanoseconds();
  snapshot.process = process_state(pid, snapshot.taken);
  return snapshot;
}

std::string encode(const RankSnapshot& snapshot) {
  const Recording& recording = snapshot.recording;
  Json operations = Json::array();
  for (std::size_t i = 0; i < recording.operations.size(); ++i) {
    const RecordedOperation& operation = recording.operations[i];
    const bool running = operation.state == RecordedOperation::State::kRunning;
    if (running || i + kSent >= recording.operations.size()) {
      operations.push_back(row_of(operation));
    }
  }
  const Json json = {{"rank", recording.rank},   {"pid", recording.process_id},
                     {"host", recording.host},   {"created", recording.created},
                     {"count", recording.count}, {"process", static_cast<int>(snapshot.process)},
                     {"taken", snapshot.taken},  {"operations", std::move(operations)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RankSnapshot decode_snapshot(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    RankSnapshot snapshot;
    const int process = json.at("process");
    if (process < 0 || process > static_cast<int>(ProcessState::kEnded)) {
      throw DataError("no such state of a process");
    }
    snapshot.process = static_cast<ProcessState>(process);
    snapshot.taken = json.at("taken");
    Recording& recording = snapshot.recording;
    recording.rank = json.at("rank");
    recording.process_id = json.at("pid");
    recording.host = json.at("host");
    recording.created = json.at("created");
    recording.count = json.at("count");
    for (const Json& operation : json.at("operations")) {
      recording.operations.push_back(operation_of(operation));
    }
    return snapshot;
  } catch (const Json::exception& error) {
    throw DataError(std::string("what is said of a rank cannot be read: ") + error.what());
  }
}

std::string describe_last_operation(const RankSnapshot& snapshot) {
  if (!snapshot.recorded()) return "it keeps no flight recorder";
  using State = RecordedOperation::State;
  const auto& operations = snapshot.recording.operations;
  const auto running = std::ranges::find(operations, State::kRunning, &RecordedOperation::state);
  if (running != operations.end()) {
    const std::string where = name_of(*running) + " (axis " + running->axis + ")";
    if (snapshot.process == ProcessState::kEnded) return "it was in " + where + " when it ended";
    return "it is in " + where + " for " + format_elapsed(running->started, snapshot.taken);
  }
  // The one that ended last, not the one that began last.
  const auto last = std::ranges::max_element(operations, {}, &RecordedOperation::finished);
  if (last == operations.end()) return "it has begun no operation";
  return (last->state == State::kFailed ? "it last failed in " : "it last completed ") +
         name_of(*last) + " " + format_elapsed(last->finished, snapshot.taken) + " ago";
}

}  // namespace troika
