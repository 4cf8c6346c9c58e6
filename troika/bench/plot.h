// Line charts as SVG: with logarithmic axes for figures over sizes, or with linear ones.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troika {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>>
      points;  // finite, x ascending; positive on logarithmic axes
};

// Numbers along an axis: 4 KiB, 16 us, 3 GB/s, 2.5.
enum class PlotUnit { kBytes, kSeconds, kBytesPerSecond, kNumber };

enum class PlotScale { kLogarithmic, kLinear };

struct PlotPanel {
  std::string title;
  std::string x_label, y_label;
  PlotUnit x_unit, y_unit;
  std::vector<PlotSeries> series;
  PlotScale scale = PlotScale::kLogarithmic;  // of both axes
};

// Draws panels in rows of two, each with axes, grid and legend. A series has the same colour in
// all.
[[nodiscard]] std::string plot_svg(std::span<const PlotPanel> panels);

}  // namespace troika
