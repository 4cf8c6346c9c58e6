#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/text_table.h>
#include <troika/base/units.h>
#include <troika/observe/inspection.h>
#include <troika/observe/machine.h>
#include <troika/observe/saved_error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <tuple>

namespace troika {
namespace {

using State = RecordedOperation::State;

// By place, and by position in Inspection::ranks.
using Places = std::map<std::uint64_t, std::map<std::size_t, const RecordedOperation*>>;

// What the ranks' records tell of one group.
struct GroupView {
  std::string axis;
  std::uint64_t generation = 0;
  std::set<std::size_t> members;  // positions in Inspection::ranks, of those that have used it
  std::int64_t first_used = std::numeric_limits<std::int64_t>::max();  // ns since 1970
  Places places;
  std::string title;  // "axis data", and what else tells it from the others
};

std::string name_of(ProcessState state) {
  switch (state) {
    case ProcessState::kRuns:
      return "runs";
    case ProcessState::kSleeps:
      return "sleeps";
    case ProcessState::kStopped:
      return "stopped";
    case ProcessState::kEnded:
      return "ended";
    case ProcessState::kUnknown:
      break;
  }
  return "?";
}

std::string name_of(State state) {
  return state == State::kRunning ? "running" : state == State::kFinished ? "finished" : "failed";
}

std::string cell(const RecordedOperation* operation, const RankSnapshot& rank) {
  if (operation == nullptr) return "-";
  switch (operation->state) {
    case State::kRunning:
      return rank.process == ProcessState::kEnded
                 ? "until it ended"
                 : "for " + format_elapsed(operation->started, rank.taken);
    case State::kFinished:
      return "took " + format_elapsed(operation->started, operation->finished);
    case State::kFailed:
      return "failed after " + format_elapsed(operation->started, operation->finished);
  }
  return "";
}

std::string ranks_text(const Inspection& inspection, const std::vector<std::size_t>& positions) {
  std::vector<std::string> names;
  for (const std::size_t i : positions) {
    names.push_back(std::to_string(inspection.ranks[i].recording.rank));
  }
  return (names.size() == 1 ? "rank " : "ranks ") + join(names, ", ");
}

// The same ranks may have made a group of an axis twice, as each ModulePipeline does. `views` are
// sorted, so that equal titles follow each other.
void number_equal_titles(std::vector<GroupView>& views) {
  for (auto begin = views.begin(); begin != views.end();) {
    const auto end = std::find_if(
        begin, views.end(), [&](const GroupView& view) { return view.title != begin->title; });
    const auto equal = end - begin;
    for (std::ptrdiff_t i = 0; equal > 1 && i < equal; ++i) {
      begin[i].title += ", group " + std::to_string(i + 1) + " of " + std::to_string(equal);
    }
    begin = end;
  }
}

std::vector<GroupView> groups_of(const Inspection& inspection) {
  std::map<std::tuple<std::string, std::uint64_t, std::uint32_t>, GroupView> groups;
  for (std::size_t i = 0; i < inspection.ranks.size(); ++i) {
    for (const RecordedOperation& each : inspection.ranks[i].recording.operations) {
      if (each.place == 0) continue;
      GroupView& group = groups[{each.axis, each.generation, each.group}];
      group.axis = each.axis;
      group.generation = each.generation;
      group.members.insert(i);
      group.first_used = std::min(group.first_used, each.started);
      group.places[each.place][i] = &each;
    }
  }
  std::map<std::pair<std::string, std::uint64_t>, int> of_axis;
  std::set<std::uint64_t> generations;
  std::vector<GroupView> views;
  for (auto& [key, group] : groups) {
    ++of_axis[{group.axis, group.generation}];
    generations.insert(group.generation);
    views.push_back(std::move(group));
  }
  for (GroupView& view : views) {
    view.title = "axis " + view.axis;
    if (of_axis[{view.axis, view.generation}] > 1) {
      view.title += " of " + ranks_text(inspection, {view.members.begin(), view.members.end()});
    }
    if (generations.size() > 1) {
      view.title += " (generation " + std::to_string(view.generation) + ")";
    }
  }
  std::ranges::sort(views, [](const GroupView& one, const GroupView& other) {
    return std::tie(one.axis, one.generation, one.members, one.first_used) <
           std::tie(other.axis, other.generation, other.members, other.first_used);
  });
  number_equal_titles(views);
  return views;
}

// What there is to say of the last place that anybody of the group has reached.
std::optional<std::string> difference(const Inspection& inspection, const GroupView& group) {
  for (const auto& [place, operations] : group.places) {
    std::map<std::uint64_t, std::vector<std::size_t>> by_signature;
    for (const auto& [i, operation] : operations) by_signature[operation->signature].push_back(i);
    if (by_signature.size() > 1) {
      std::vector<std::string> parts;
      for (const auto& [signature, positions] : by_signature) {
        const RecordedOperation& each = *operations.at(positions.front());
        parts.push_back(ranks_text(inspection, positions) + " " + troika::name_of(each) + " (" +
                        std::to_string(each.elements) + " x " + each.dtype + ")");
      }
      return "operation " + std::to_string(place) + " on " + group.title +
             " differs: " + join(parts, "; ");
    }
  }
  const auto& [place, operations] = *group.places.rbegin();
  std::vector<std::size_t> absent, present;
  for (const std::size_t i : group.members) {
    (operations.contains(i) ? present : absent).push_back(i);
  }
  if (absent.empty()) return std::nullopt;
  return ranks_text(inspection, absent) + (absent.size() == 1 ? " has" : " have") +
         " not entered " + troika::name_of(*operations.begin()->second) + " (operation " +
         std::to_string(place) + " on " + group.title + "); " + ranks_text(inspection, present) +
         (present.size() == 1 ? " has" : " have");
}

std::string overview(const Inspection& inspection) {
  TextRows rows = {{"rank", "host", "pid", "process", "operations", "last"}};
  for (const RankSnapshot& rank : inspection.ranks) {
    const Recording& recording = rank.recording;
    rows.push_back({std::to_string(recording.rank), recording.host,
                    std::to_string(recording.process_id), name_of(rank.process),
                    std::to_string(recording.count), describe_last_operation(rank)});
  }
  return text_table(rows);
}

std::string errors_and_gaps(const Inspection& inspection) {
  std::string text;
  for (const auto& [rank, message] : inspection.errors) {
    text += "rank " + std::to_string(rank) + ": " + message + "\n";
  }
  for (const std::string& file : inspection.unreadable) {
    const std::string name = std::filesystem::path(file).filename().string();
    text += quote(name) + " is no flight recorder file\n";
  }
  return text.empty() ? "" : "\n" + text;
}

std::string side_by_side(const Inspection& inspection, const GroupView& group, int last) {
  TextRows rows = {{group.title, "operation"}};
  const Places& places = group.places;
  for (const std::size_t i : group.members) {
    rows.front().push_back("rank " + std::to_string(inspection.ranks[i].recording.rank));
  }
  auto first = places.end();
  for (int i = 0; i < last && first != places.begin(); ++i) --first;
  for (; first != places.end(); ++first) {
    const RecordedOperation& any = *first->second.begin()->second;
    std::vector<std::string> row = {std::to_string(first->first), troika::name_of(any)};
    for (const std::size_t i : group.members) {
      const auto found = first->second.find(i);
      row.push_back(
          cell(found == first->second.end() ? nullptr : found->second, inspection.ranks[i]));
    }
    rows.push_back(std::move(row));
  }
  return text_table(rows);
}

nlohmann::json to_json(const RecordedOperation& operation) {
  return {{"sequence", operation.sequence},
          {"state", name_of(operation.state)},
          {"started_ns", operation.started},
          {"finished_ns", operation.finished},
          {"bytes", operation.bytes},
          {"bytes_sent", operation.sent},
          {"steps", operation.steps},
          {"place", operation.place},
          {"generation", operation.generation},
          {"group", operation.group},
          {"elements", operation.elements},
          {"dtype", operation.dtype},
          {"operation", operation.operation},
          {"axis", operation.axis},
          {"label", operation.label}};
}

}  // namespace

namespace {

std::vector<std::filesystem::path> recorders_in(const std::filesystem::path& folder,
                                                std::error_code& error) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("flight-rank-") && name.ends_with(".bin")) files.push_back(entry.path());
  }
  return files;
}

}  // namespace

Inspection inspect_run(const std::filesystem::path& folder) {
  std::error_code error, no_such_folder;
  std::vector<std::filesystem::path> files = recorders_in(folder, error);
  if (files.empty() && !error) files = recorders_in(folder / "flight", no_such_folder);
  if (error) throw DataError("cannot read " + quote(folder.string()) + ": " + error.message());
  if (files.empty()) {
    throw DataError(quote(folder.string()) + " holds no flight recorders (flight-rank-*.bin)",
                    "name the folder of a run on several ranks, such as runs/quickstart");
  }
  std::sort(files.begin(), files.end());
  Inspection inspection{folder.string(), {}};
  for (const std::filesystem::path& file : files) {
    auto snapshot = take_snapshot(file);
    if (!snapshot) {
      inspection.unreadable.push_back(file.string());
      continue;
    }
    const int rank = snapshot->recording.rank;
    if (auto error = read_saved_error(file.parent_path(), rank))
      inspection.errors[rank] = error->failure.message;
    if (snapshot->recording.host != host_name()) snapshot->process = ProcessState::kUnknown;
    inspection.ranks.push_back(std::move(*snapshot));
  }
  if (inspection.ranks.empty()) {
    throw DataError(quote(inspection.unreadable.front()) + " is no flight recorder file");
  }
  std::ranges::sort(inspection.ranks, {},
                    [](const RankSnapshot& each) { return each.recording.rank; });
  return inspection;
}

std::vector<std::string> differences(const Inspection& inspection) {
  std::vector<std::string> lines;
  for (const GroupView& group : groups_of(inspection)) {
    if (auto line = difference(inspection, group)) lines.push_back(std::move(*line));
  }
  return lines;
}

std::string to_text(const Inspection& inspection, int last) {
  std::string text = overview(inspection) + errors_and_gaps(inspection) + "\n";
  const std::vector<std::string> lines = differences(inspection);
  for (const std::string& line : lines) text += line + "\n";
  if (lines.empty()) {
    text += "as far as the records tell, all ranks have entered the same operations\n";
  }
  for (const GroupView& group : groups_of(inspection)) {
    text += "\n" + side_by_side(inspection, group, last);
  }
  return text;
}

std::string to_json(const Inspection& inspection) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankSnapshot& rank : inspection.ranks) {
    nlohmann::json operations = nlohmann::json::array();
    for (const auto& operation : rank.recording.operations)
      operations.push_back(to_json(operation));
    const auto error = inspection.errors.find(rank.recording.rank);
    const bool failed = error != inspection.errors.end();
    ranks.push_back({{"rank", rank.recording.rank},
                     {"host", rank.recording.host},
                     {"pid", rank.recording.process_id},
                     {"process", name_of(rank.process)},
                     {"count", rank.recording.count},
                     {"error", failed ? nlohmann::json(error->second) : nlohmann::json()},
                     {"operations", std::move(operations)}});
  }
  return nlohmann::json{{"folder", inspection.folder},
                        {"differences", differences(inspection)},
                        {"unreadable", inspection.unreadable},
                        {"ranks", std::move(ranks)}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troika
