// The pipeline schedules that there are, by name. docs/schedules.md says what each is good for. A
// new one is a generator (generators.h) and a line in the table of generate.cc.
#pragma once

#include <troika/schedule/schedule.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace troika {

struct ScheduleShape {
  int ranks = 1;
  int virtual_stages = 1;  // on each rank
  int microbatches = 1;
};

// Returns "gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v": as in the
// recipe.
[[nodiscard]] std::span<const std::string_view> schedule_names();

// Returns the fewest virtual stages a rank that the schedule can have: 2 for "zb-v", 1 for the
// others. Throws UsageError for a name that is not known.
[[nodiscard]] int min_virtual_stages(std::string_view name);

// Returns the most virtual stages a rank that the schedule can have. Throws UsageError for a name
// that is not known.
[[nodiscard]] int max_virtual_stages(std::string_view name);

// Returns whether input and weight gradients of a stage are computed apart. Throws UsageError for a
// name that is not known.
[[nodiscard]] bool splits_backward(std::string_view name);

// Returns whether every microbatch's activations are kept until the last forward pass. Throws
// UsageError for a name that is not known.
[[nodiscard]] bool keeps_all_activations(std::string_view name);

// Returns the schedules to take instead of this one for so many virtual stages a rank, the nearest
// kin first.
[[nodiscard]] std::vector<std::string_view> schedules_instead(std::string_view name,
                                                              std::int64_t virtual_stages);

// Returns the number of virtual stages a rank for a request of `asked`: 0 and 1, the default of a
// recipe, mean the fewest that the schedule can have; others are returned as they are. Throws
// UsageError for a name that is not known.
[[nodiscard]] int resolve_virtual_stages(std::string_view name, int asked);

// Throws UsageError for a name that is not known (with the nearest one), a size below 1, and
// virtual stages that the schedule cannot have (with a schedule that can).
void check_schedule(std::string_view name, const ScheduleShape& shape);

// Returns the schedule with its transfers. Virtual stage v of rank r is stage v x ranks + r; for
// "zb-v" stages r and 2 x ranks - 1 - r are those of rank r. Throws UsageError as check_schedule.
[[nodiscard]] Schedule make_schedule(std::string_view name, const ScheduleShape& shape);

}  // namespace troika
