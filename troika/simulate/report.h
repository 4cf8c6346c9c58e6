// What `troika simulate sync` shows of several settings side by side.
#pragma once

#include <troika/simulate/sync_simulation.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

struct SimulatedSetting {
  std::string name;  // "kind=server staleness=any"
  SyncSimulation simulation;
};

struct SyncReport {
  SimulatedJob job;
  std::string speeds, link;  // as they were given
  std::uint64_t seed = 0;
  std::vector<SimulatedSetting> settings;
};

// Returns the held-out loss that all settings have come to, or the loss of a step where nothing is
// held out: the largest of their smallest. And when a setting was there first, in s; nothing where
// it never was.
[[nodiscard]] double common_loss(const SyncReport& report);
[[nodiscard]] std::optional<double> time_to(const SyncReport& report,
                                            const SyncSimulation& simulation, double loss);

// Return a table for people; a line of JSON, documented in docs/loose-coupling.md; and a plot of
// the losses over the virtual time, as SVG.
[[nodiscard]] std::string to_text(const SyncReport& report);
[[nodiscard]] std::string to_json(const SyncReport& report);
[[nodiscard]] std::string to_svg(const SyncReport& report);

}  // namespace troika
