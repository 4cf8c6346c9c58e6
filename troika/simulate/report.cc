#include <troika/base/text.h>
#include <troika/base/text_table.h>
#include <troika/base/units.h>
#include <troika/bench/plot.h>
#include <troika/simulate/report.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

using Json = nlohmann::json;

bool has_held_out(const SyncReport& report) {
  return std::ranges::any_of(report.settings, [](const SimulatedSetting& setting) {
    return std::ranges::any_of(setting.simulation.steps, [](const SimulatedStep& step) {
      return step.held_out_loss.has_value();
    });
  });
}

// What settings are compared by: held-out losses where there are some, so that a step without one
// does not count.
std::optional<double> compared_loss(const SimulatedStep& step, bool held_out) {
  const std::optional<double> loss = held_out ? step.held_out_loss : step.loss;
  return loss && std::isfinite(*loss) ? loss : std::nullopt;
}

std::optional<double> last_loss(const SyncSimulation& simulation, bool held_out) {
  std::optional<double> last;
  for (const SimulatedStep& step : simulation.steps) {
    if (const auto loss = compared_loss(step, held_out)) last = loss;
  }
  return last;
}

std::string loss_text(std::optional<double> loss) {
  return loss ? format_fixed(*loss, 4) : "-";
}

Json json_of(const SyncSimulation& simulation) {
  Json staleness = Json::object(), steps = Json::array(), workers = Json::array();
  for (const auto& [each, updates] : simulation.staleness) {
    staleness[std::to_string(each)] = updates;
  }
  for (const SimulatedStep& step : simulation.steps) {
    Json told = {{"step", step.step},
                 {"seconds", step.seconds},
                 {"loss", step.loss},
                 {"updates", step.updates}};
    if (step.staleness) told["staleness_mean"] = *step.staleness;
    if (step.held_out_loss) told["held_out_loss"] = *step.held_out_loss;
    steps.push_back(std::move(told));
  }
  for (const SimulatedWorker& worker : simulation.workers) {
    Json told = {
        {"passes", worker.passes}, {"samples", worker.samples}, {"busy_seconds", worker.busy}};
    if (worker.joined > 0) told["joined"] = worker.joined;
    if (std::isfinite(worker.left)) told["left"] = worker.left;
    workers.push_back(std::move(told));
  }
  Json json = {{"seconds", simulation.seconds},
               {"outside_seconds", simulation.outside_seconds},
               {"sent_bytes", std::llround(simulation.sent)},
               {"received_bytes", std::llround(simulation.received)},
               {"waiting", simulation.waiting()},
               {"workers", std::move(workers)},
               {"steps", std::move(steps)}};
  if (!simulation.staleness.empty()) {
    json["staleness"] = std::move(staleness);
    json["staleness_mean"] = mean_value(simulation.staleness);
    json["staleness_max"] = largest_value(simulation.staleness);
  }
  if (!simulation.failure.empty()) json["failure"] = simulation.failure;
  return json;
}

std::string title(const SyncReport& report) {
  const auto [slowest, fastest] = std::ranges::minmax_element(report.job.speeds);
  std::string text = plural(report.job.starting(), "worker");
  if (const int join = report.job.workers() - report.job.starting(); join > 0) {
    text += " and " + std::to_string(join) + " that join" + (join == 1 ? "s" : "");
  }
  text += ", speeds " + report.speeds + " (seed " + std::to_string(report.seed) + ": " +
          format_fixed(*slowest, 2) + " to " + format_fixed(*fastest, 2) + "), link " +
          (report.link.empty() ? "unlimited" : report.link) + ", " +
          format_duration(report.job.pass_seconds) + " a pass at speed 1\n\n";
  return text;
}

}  // namespace

double common_loss(const SyncReport& report) {
  const bool held_out = has_held_out(report);
  double largest = -std::numeric_limits<double>::infinity();
  for (const SimulatedSetting& setting : report.settings) {
    double smallest = std::numeric_limits<double>::infinity();
    for (const SimulatedStep& step : setting.simulation.steps) {
      if (const auto loss = compared_loss(step, held_out)) smallest = std::min(smallest, *loss);
    }
    if (std::isfinite(smallest)) largest = std::max(largest, smallest);
  }
  return largest;
}

std::optional<double> time_to(const SyncReport& report, const SyncSimulation& simulation,
                              double loss) {
  const bool held_out = has_held_out(report);
  for (const SimulatedStep& step : simulation.steps) {
    const auto found = compared_loss(step, held_out);
    if (found && *found <= loss) return step.seconds;
  }
  return std::nullopt;
}

std::string to_text(const SyncReport& report) {
  const bool held_out = has_held_out(report);
  const double common = common_loss(report);
  TextRows rows = {{"sync", "time", "waiting", "mean staleness", "largest", "sent", "received",
                    held_out ? "held-out loss" : "loss", "to " + format_fixed(common, 4)}};
  for (const SimulatedSetting& setting : report.settings) {
    const SyncSimulation& each = setting.simulation;
    const bool is_stale = !each.staleness.empty();
    const auto reached = time_to(report, each, common);
    rows.push_back(
        {setting.name, format_duration(each.seconds), format_fixed(100 * each.waiting(), 1) + " %",
         is_stale ? format_fixed(mean_value(each.staleness), 2) : "-",
         is_stale ? std::to_string(largest_value(each.staleness)) : "-",
         format_bytes(static_cast<std::uint64_t>(std::llround(each.sent))),
         format_bytes(static_cast<std::uint64_t>(std::llround(each.received))),
         loss_text(last_loss(each, held_out)), reached ? format_duration(*reached) : "-"});
  }
  std::string text = title(report) + text_table(rows, Align::kNumbers);
  for (const SimulatedSetting& setting : report.settings) {
    if (setting.simulation.failure.empty()) continue;
    text.append(setting.name).append(" ended early: ").append(setting.simulation.failure);
    text.append("\n");
  }
  return text;
}

std::string to_json(const SyncReport& report) {
  Json settings = Json::array();
  for (const SimulatedSetting& setting : report.settings) {
    Json json = json_of(setting.simulation);
    json["sync"] = setting.name;
    settings.push_back(std::move(json));
  }
  Json link = {{"latency_seconds", report.job.link.latency}};
  if (std::isfinite(report.job.link.bytes_per_second)) {
    link["bytes_per_second"] = report.job.link.bytes_per_second;
  }
  return Json({{"workers", report.job.workers()},
               {"seed", report.seed},
               {"speeds", report.job.speeds},
               {"pass_seconds", report.job.pass_seconds},
               {"link", std::move(link)},
               {"unevenness", report.job.unevenness},
               {"settings", std::move(settings)}})
      .dump();
}

std::string to_svg(const SyncReport& report) {
  const bool held_out = has_held_out(report);
  PlotPanel panel{plural(report.job.workers(), "worker"),
                  "virtual time",
                  held_out ? "held-out loss" : "loss",
                  PlotUnit::kSeconds,
                  PlotUnit::kNumber,
                  {},
                  PlotScale::kLinear};
  for (const SimulatedSetting& setting : report.settings) {
    PlotSeries series{setting.name, {}};
    for (const SimulatedStep& step : setting.simulation.steps) {
      if (const auto loss = compared_loss(step, held_out)) {
        series.points.emplace_back(step.seconds, *loss);
      }
    }
    panel.series.push_back(std::move(series));
  }
  return plot_svg({&panel, 1});
}

}  // namespace troika
