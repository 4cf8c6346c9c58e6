#include <troika/base/text_table.h>
#include <troika/base/units.h>
#include <troika/schedule/draw.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace troika {
namespace {

constexpr int kNarrowest = 40;
constexpr int kWidestUnit = 6;  // columns of the shortest action: "W123" and room
constexpr int kTimeDigits = 3;
constexpr char kIdle = '.';

std::string pad_left(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string label_of(std::size_t rank, std::size_t ranks) {
  return "rank " + pad_left(std::to_string(rank), std::to_string(ranks - 1).size()) + "  ";
}

// Of the actions that take any time at all.
double shortest_action(const Simulation& simulation) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const RankTimes& rank : simulation.ranks) {
    for (const TimedAction& timed : rank.actions) {
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
    }
  }
  return shortest;
}

// Columns a millisecond. A whole number of them for the shortest action, where it gets any: then
// equal actions look equal.
double scale_of(const Simulation& simulation, int columns) {
  if (simulation.makespan <= 0) return 0;
  const double shortest = shortest_action(simulation);
  // A little more: rounding must not cost a column.
  const double whole = std::floor(columns * (shortest / simulation.makespan) + 1e-9);
  return whole < 1 ? columns / simulation.makespan
                   : std::min<double>(whole, kWidestUnit) / shortest;
}

// By stage: those that are drawn in lower case, every second one of a rank.
std::vector<bool> lower_case(const Schedule& schedule) {
  std::vector<bool> is_odd(static_cast<std::size_t>(schedule.ranks), false);
  std::vector<bool> result;
  for (const int rank : schedule.rank_of_stage) {
    const auto r = static_cast<std::size_t>(rank);
    result.push_back(is_odd[r]);
    is_odd[r] = !is_odd[r];
  }
  return result;
}

std::string row_of(const RankTimes& rank, const std::vector<bool>& lower, double scale,
                   std::size_t width) {
  std::string row(width, kIdle);
  for (const TimedAction& timed : rank.actions) {
    const auto begin = static_cast<std::size_t>(std::lround(timed.start * scale));
    const auto end = std::min(width, static_cast<std::size_t>(std::lround(timed.end * scale)));
    if (end <= begin) continue;
    std::string text(name_of(timed.action.kind));
    if (lower[static_cast<std::size_t>(timed.action.stage)]) {
      text[0] = static_cast<char>(text[0] - 'A' + 'a');
    }
    const std::string number = std::to_string(timed.action.microbatch);
    if (text.size() + number.size() <= end - begin) text += number;
    text.resize(end - begin, ' ');
    row.replace(begin, end - begin, text);
  }
  return row;
}

std::string legend_of(const Schedule& schedule, double shortest, double scale) {
  bool splits = false;
  for (const ScheduleAction& action : schedule.programs.front()) {
    splits = splits || action.kind == ActionKind::kBackwardWeight;
  }
  std::string legend = "F forward, ";
  legend += splits ? "B gradient of the input, W of the weights" : "B backward";
  if (schedule.virtual_stages == 2) legend += "; lower case: virtual stage 1, else virtual stage 0";
  if (schedule.virtual_stages > 2) legend += "; lower case: odd virtual stages";
  legend += "\nThe number is the microbatch; ";
  legend += kIdle;
  legend += " waits";
  if (scale > 0) legend += "; a column is " + format_fixed(1 / scale, kTimeDigits) + " ms";
  if (shortest * scale < 1 - 1e-6) legend += ", too long to show every action";
  return legend + "\n";
}

std::string percent(double part) {
  return format_fixed(100 * part, 1) + " %";
}

std::vector<std::string> row_of(const std::string& label, double first, double last, double span,
                                double busy, double activations) {
  return {label,
          format_fixed(first, kTimeDigits),
          format_fixed(last, kTimeDigits),
          format_fixed(span, kTimeDigits),
          format_fixed(busy, kTimeDigits),
          percent(idle_fraction(span, busy)),
          format_fixed(activations, 2)};
}

}  // namespace

std::string draw(const Schedule& schedule, const Simulation& simulation, int columns) {
  const std::size_t ranks = simulation.ranks.size();
  const int label = static_cast<int>(label_of(0, ranks).size());
  const double scale = scale_of(simulation, std::max(columns, kNarrowest) - label);
  const auto width = static_cast<std::size_t>(std::lround(simulation.makespan * scale));
  const std::vector<bool> lower = lower_case(schedule);
  std::string text;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::string line = label_of(rank, ranks);
    line += row_of(simulation.ranks[rank], lower, scale, width);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text + legend_of(schedule, shortest_action(simulation), scale);
}

std::string to_table(const Simulation& simulation) {
  TextRows rows = {
      {"rank", "first start", "last end", "span", "busy", "bubble", "peak activations"}};
  double busy = 0;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const RankTimes& times = simulation.ranks[rank];
    rows.push_back(row_of(std::to_string(rank), times.first_start, times.last_end, times.span(),
                          times.busy, times.peak_activations));
    busy += times.busy / static_cast<double>(simulation.ranks.size());
  }
  rows.push_back(row_of("all", 0, simulation.makespan, simulation.makespan, busy,
                        simulation.peak_activations));
  return text_table(rows, Align::kNumbers) +
         "Times in ms, activations in microbatches. All: the makespan, and what is busy of it on " +
         "average (bubble_makespan).\nThe longest span of a rank is " +
         format_fixed(simulation.longest_span, kTimeDigits) + " ms, of which " +
         percent(simulation.bubble_cost) + " bubble (bubble_cost).\n";
}

}  // namespace troika
