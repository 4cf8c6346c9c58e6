#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/schedule/generate.h>
#include <troika/schedule/generators.h>

#include <algorithm>
#include <array>
#include <limits>

namespace troika {
namespace {

enum class Placement { kRoundRobin, kV };

struct ScheduleKind {
  std::string_view name;
  detail::Generator generate;
  Placement placement;
  int min_virtual_stages;
  int max_virtual_stages;
  bool splits_backward;
  bool keeps_all_activations;
  std::string_view hint;                     // what to do about other numbers of virtual stages
  std::array<std::string_view, 2> kin = {};  // to take for other numbers of virtual stages
};

constexpr int kAny = std::numeric_limits<int>::max();
constexpr std::string_view kOneVirtualStage =
    "set virtual_stages = 1 (--virtual-stages 1), or take zb-v, which has 2 virtual stages a rank";
constexpr std::string_view kOneForwardOneBackward =
    "take interleaved-1f1b, which has any number of virtual stages a rank, or set "
    "virtual_stages = 1 (--virtual-stages 1)";

// A new schedule is one line here.
constexpr std::array kKinds = {
    ScheduleKind{"gpipe", detail::gpipe, Placement::kRoundRobin, 1, kAny, false, true, ""},
    ScheduleKind{"1f1b",
                 detail::one_forward_one_backward,
                 Placement::kRoundRobin,
                 1,
                 1,
                 false,
                 false,
                 kOneForwardOneBackward,
                 {"interleaved-1f1b"}},
    ScheduleKind{"eager-1f1b",
                 detail::eager_one_forward_one_backward,
                 Placement::kRoundRobin,
                 1,
                 1,
                 false,
                 false,
                 kOneForwardOneBackward,
                 {"interleaved-1f1b"}},
    ScheduleKind{"interleaved-1f1b", detail::interleaved, Placement::kRoundRobin, 1, kAny, false,
                 false, ""},
    ScheduleKind{"zb-h1",
                 detail::zero_bubble_h1,
                 Placement::kRoundRobin,
                 1,
                 1,
                 true,
                 false,
                 kOneVirtualStage,
                 {"interleaved-1f1b", "zb-v"}},
    ScheduleKind{"zb-h2",
                 detail::zero_bubble_h2,
                 Placement::kRoundRobin,
                 1,
                 1,
                 true,
                 false,
                 kOneVirtualStage,
                 {"interleaved-1f1b", "zb-v"}},
    ScheduleKind{
        "zb-v",
        detail::zero_bubble_v,
        Placement::kV,
        2,
        2,
        true,
        false,
        "set virtual_stages = 2 (--virtual-stages 2), or take zb-h1, which has 1 virtual stage a "
        "rank",
        {"zb-h1"}},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kKinds.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kKinds[i].name;
  return names;
}();

const ScheduleKind& kind_called(std::string_view name) {
  const auto* found = std::find_if(kKinds.begin(), kKinds.end(),
                                   [name](const ScheduleKind& kind) { return kind.name == name; });
  if (found != kKinds.end()) return *found;
  const auto meant = nearest(name, kNames);
  throw UsageError("no pipeline schedule is called " + quote(name),
                   meant ? "did you mean " + *meant + "?" : "schedules: " + join(kNames, ", "));
}

void check_size(std::string_view what, int size) {
  if (size >= 1) return;
  throw UsageError("a pipeline schedule with " + std::to_string(size) + " " + std::string(what) +
                   "; the fewest are 1");
}

std::vector<int> place(Placement placement, const ScheduleShape& shape) {
  std::vector<int> ranks;
  for (int virtual_stage = 0; virtual_stage < shape.virtual_stages; ++virtual_stage) {
    const bool backwards = placement == Placement::kV && virtual_stage % 2 == 1;
    for (int i = 0; i < shape.ranks; ++i) ranks.push_back(backwards ? shape.ranks - 1 - i : i);
  }
  return ranks;
}

}  // namespace

std::span<const std::string_view> schedule_names() {
  return kNames;
}

int min_virtual_stages(std::string_view name) {
  return kind_called(name).min_virtual_stages;
}

int max_virtual_stages(std::string_view name) {
  return kind_called(name).max_virtual_stages;
}

bool splits_backward(std::string_view name) {
  return kind_called(name).splits_backward;
}

bool keeps_all_activations(std::string_view name) {
  return kind_called(name).keeps_all_activations;
}

std::vector<std::string_view> schedules_instead(std::string_view name,
                                                std::int64_t virtual_stages) {
  std::vector<std::string_view> names;
  for (const std::string_view kin : kind_called(name).kin) {
    if (kin.empty()) continue;
    const ScheduleKind& kind = kind_called(kin);
    const bool fits =
        virtual_stages >= kind.min_virtual_stages && virtual_stages <= kind.max_virtual_stages;
    if (fits) names.push_back(kin);
  }
  return names;
}

int resolve_virtual_stages(std::string_view name, int asked) {
  const int fewest = min_virtual_stages(name);
  return asked == 0 || asked == 1 ? fewest : asked;
}

void check_schedule(std::string_view name, const ScheduleShape& shape) {
  const ScheduleKind& kind = kind_called(name);
  check_size("ranks", shape.ranks);
  check_size("virtual stages a rank", shape.virtual_stages);
  check_size("microbatches", shape.microbatches);
  if (shape.virtual_stages < kind.min_virtual_stages ||
      shape.virtual_stages > kind.max_virtual_stages) {
    throw UsageError("the schedule " + std::string(name) + " has " +
                         plural(kind.min_virtual_stages, "virtual stage") + " a rank, not " +
                         std::to_string(shape.virtual_stages),
                     std::string(kind.hint));
  }
}

Schedule make_schedule(std::string_view name, const ScheduleShape& shape) {
  check_schedule(name, shape);
  const ScheduleKind& kind = kind_called(name);
  Schedule schedule;
  schedule.name = name;
  schedule.ranks = shape.ranks;
  schedule.virtual_stages = shape.virtual_stages;
  schedule.microbatches = shape.microbatches;
  schedule.rank_of_stage = place(kind.placement, shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    schedule.programs.push_back(kind.generate(shape, rank));
  }
  add_transfers(schedule);
  return schedule;
}

}  // namespace troika
