// The generators behind generate.h: each writes what one rank computes, in order; the transfers are
// added for all schedules alike. Forwards, input gradients and weight gradients of a stage each
// come in ascending order of microbatches, so that every schedule adds up the same bits. Internal
// to this folder.
#pragma once

#include <troika/schedule/generate.h>

namespace troika::detail {

using Generator = Program (*)(const ScheduleShape& shape, int rank);

// Huang et al. 2019, "GPipe": all forwards, then all backwards; one virtual stage after the
// other where a rank has several.
[[nodiscard]] Program gpipe(const ScheduleShape& shape, int rank);

// Narayanan et al. 2019, "PipeDream" (with a flush at the end of the step): p - 1 - s forwards
// ahead, then a forward and a backward in turn.
[[nodiscard]] Program one_forward_one_backward(const ScheduleShape& shape, int rank);

// Zhuang et al. 2023, "On optimizing the communication of model parallelism" (eager-1F1B): twice as
// many forwards ahead, 2 (p - 1 - s), so that a transfer has a whole microbatch's time to arrive.
[[nodiscard]] Program eager_one_forward_one_backward(const ScheduleShape& shape, int rank);

// Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
// Megatron-LM", section 2.2: groups of p microbatches pass one virtual stage after the other. The
// last group may be smaller: it keeps the order of a full one, without the missing microbatches.
[[nodiscard]] Program interleaved(const ScheduleShape& shape, int rank);

// Qi et al. 2023, "Zero bubble pipeline parallelism", section 2: stage s has p - 1 - s (ZB-H1) or
// 2 (p - 1 - s) (ZB-H2) forwards ahead, and its weight gradients lag by s or 2 s microbatches.
[[nodiscard]] Program zero_bubble_h1(const ScheduleShape& shape, int rank);
[[nodiscard]] Program zero_bubble_h2(const ScheduleShape& shape, int rank);

// Qi et al. 2024, "Pipeline parallelism with controllable memory": two virtual stages a rank, laid
// out as a V, so that every microbatch begins and ends on rank 0.
[[nodiscard]] Program zero_bubble_v(const ScheduleShape& shape, int rank);

}  // namespace troika::detail
