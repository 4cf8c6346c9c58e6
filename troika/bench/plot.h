// Line charts with logarithmic axes, as SVG, for figures over sizes.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troika {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // positive, x ascending
};

// Numbers along an axis: 4 KiB, 16 us, 3 GB/s.
enum class PlotUnit { kBytes, kSeconds, kBytesPerSecond };

struct PlotPanel {
  std::string title;
  std::string x_label, y_label;
  PlotUnit x_unit, y_unit;
  std::vector<PlotSeries> series;
};

// Draws panels in rows of two, each with axes, grid and legend. A series has the same colour in
// all.
[[nodiscard]] std::string plot_svg(std::span<const PlotPanel> panels);

}  // namespace troika
