// A simulated schedule for people and machines: a drawing and a table in plain text, one line of
// JSON, and a trace for ui.perfetto.dev. Times are taken to be milliseconds.
#pragma once

#include <troika/schedule/simulate.h>

#include <string>

namespace troika {

// Draws one line a rank, time from left to right, no wider than `columns` (at least 40), and a
// legend. Each action fills the columns of its time with its letter and, where there is room, its
// microbatch.
[[nodiscard]] std::string draw(const Schedule& schedule, const Simulation& simulation, int columns);

// Returns a line for each rank and one over all: span, busy time, bubble, peak activations.
[[nodiscard]] std::string to_table(const Simulation& simulation);

// Returns one line, without its end: `schedule, stages, virtual_stages, microbatches, makespan,
// longest_span, bubble_makespan, bubble_cost, peak_activations, ranks[]` with `rank, first_start,
// last_end, span, busy, peak_activations, actions[]` of `kind, stage, microbatch, start, end`.
// `kind` is one of F, B, W, BW: B is the gradient of the input, BW both in one.
[[nodiscard]] std::string to_json(const Schedule& schedule, const Simulation& simulation);

// Returns a trace in Chrome's trace event format. Each rank is a process, and each action a span
// such as "F3 (stage 1)". A counter has the activations that are alive, in microbatches.
[[nodiscard]] std::string to_trace(const Schedule& schedule, const Simulation& simulation);

}  // namespace troika
