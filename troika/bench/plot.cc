#include <troika/base/units.h>
#include <troika/bench/plot.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace troika {
namespace {

constexpr double kWidth = 520, kHeight = 360;                       // of a panel
constexpr double kLeft = 76, kRight = 16, kTop = 40, kBottom = 56;  // around its axes
// Told apart by people who see few colours, too (Okabe and Ito 2008).
constexpr std::array<std::string_view, 6> kColours = {"#0072b2", "#d55e00", "#009e73",
                                                      "#cc79a7", "#e69f00", "#56b4e9"};

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else {
      result += c;
    }
  }
  return result;
}

std::string number(double value) {
  return format_fixed(value, 1);
}

std::string label_of(PlotUnit unit, double value) {
  switch (unit) {
    case PlotUnit::kBytes:
      return format_bytes(static_cast<std::uint64_t>(std::llround(value)));
    case PlotUnit::kSeconds:
      return format_duration(value);
    case PlotUnit::kBytesPerSecond:
      return format_bandwidth(value);
  }
  return {};
}

// From values to places along one side of the panel; logarithmic.
class Axis {
 public:
  Axis(double low, double high, double step, double from, double to)
      : step_(step),
        low_(std::floor(std::log(low) / std::log(step) + 1e-9)),
        high_(std::ceil(std::log(high) / std::log(step) - 1e-9)),
        from_(from),
        to_(to) {
    if (high_ <= low_) high_ = low_ + 1;
  }
  [[nodiscard]] double at(double value) const {
    return from_ + (to_ - from_) * (std::log(value) / std::log(step_) - low_) / (high_ - low_);
  }
  // Powers of the step, at most about eight.
  [[nodiscard]] std::vector<double> ticks() const {
    const int powers = static_cast<int>(high_ - low_), every = (powers + 7) / 8;
    std::vector<double> values;
    for (int power = 0; power <= powers; power += every) {
      values.push_back(std::pow(step_, low_ + power));
    }
    return values;
  }

 private:
  double step_, low_, high_, from_, to_;
};

std::string line(double x1, double y1, double x2, double y2, std::string_view colour) {
  return "<line x1='" + number(x1) + "' y1='" + number(y1) + "' x2='" + number(x2) + "' y2='" +
         number(y2) + "' stroke='" + std::string(colour) + "'/>\n";
}

std::string words(double x, double y, std::string_view anchor, std::string_view text,
                  std::string_view more = "") {
  return "<text x='" + number(x) + "' y='" + number(y) + "' text-anchor='" + std::string(anchor) +
         "' " + std::string(more) + ">" + escaped(text) + "</text>\n";
}

class Panel {
 public:
  explicit Panel(const PlotPanel& panel) : panel_(panel) {
    for (const PlotSeries& series : panel.series) {
      for (const auto& [x, y] : series.points) {
        low_x_ = std::min(low_x_, x);
        high_x_ = std::max(high_x_, x);
        low_y_ = std::min(low_y_, y);
        high_y_ = std::max(high_y_, y);
      }
    }
  }

  [[nodiscard]] std::string svg() const {
    if (high_x_ <= 0 || high_y_ <= 0) return words(kWidth / 2, kHeight / 2, "middle", "nothing");
    const Axis x(low_x_, high_x_, 2, kLeft, kWidth - kRight);
    const Axis y(low_y_, high_y_, 10, kHeight - kBottom, kTop);
    std::string text = words(kWidth / 2, 22, "middle", panel_.title, "font-weight='bold'");
    text += grid(x, y);
    for (std::size_t i = 0; i < panel_.series.size(); ++i) text += series(i, x, y);
    return text;
  }

 private:
  [[nodiscard]] std::string grid(const Axis& x, const Axis& y) const {
    const double bottom = kHeight - kBottom, right = kWidth - kRight;
    std::string text;
    for (const double value : x.ticks()) {
      text += line(x.at(value), kTop, x.at(value), bottom, "#ddd");
      text += words(x.at(value), bottom + 16, "middle", label_of(panel_.x_unit, value));
    }
    for (const double value : y.ticks()) {
      text += line(kLeft, y.at(value), right, y.at(value), "#ddd");
      text += words(kLeft - 6, y.at(value) + 4, "end", label_of(panel_.y_unit, value));
    }
    text += line(kLeft, bottom, right, bottom, "#333") + line(kLeft, kTop, kLeft, bottom, "#333");
    text += words((kLeft + right) / 2, kHeight - 16, "middle", panel_.x_label);
    text += words(0, 0, "middle", panel_.y_label,
                  "transform='translate(14 " + number((kTop + bottom) / 2) + ") rotate(-90)'");
    return text;
  }

  [[nodiscard]] std::string series(std::size_t index, const Axis& x, const Axis& y) const {
    const PlotSeries& series = panel_.series[index];
    const std::string colour(kColours[index % kColours.size()]);
    std::string path, dots;
    for (const auto& [at_x, at_y] : series.points) {
      const std::string cx = number(x.at(at_x)), cy = number(y.at(at_y));
      path.append(path.empty() ? "" : " ").append(cx).append(",").append(cy);
      dots.append("<circle cx='").append(cx).append("' cy='").append(cy);
      dots.append("' r='3' fill='").append(colour).append("'/>\n");
    }
    const double legend = kTop + 14 + 16 * static_cast<double>(index);
    return "<polyline fill='none' stroke-width='2' stroke='" + colour + "' points='" + path +
           "'/>\n" + dots + line(kLeft + 10, legend - 4, kLeft + 30, legend - 4, colour) +
           words(kLeft + 36, legend, "start", series.name);
  }

  const PlotPanel& panel_;
  double low_x_ = 1e300, high_x_ = 0, low_y_ = 1e300, high_y_ = 0;
};

}  // namespace

std::string plot_svg(std::span<const PlotPanel> panels) {
  const auto columns = static_cast<double>(std::min<std::size_t>(2, panels.size()));
  const std::size_t rows = (panels.size() + 1) / 2;
  const std::string size =
      number(columns * kWidth) + "' height='" + number(static_cast<double>(rows) * kHeight);
  std::string text = "<svg xmlns='http://www.w3.org/2000/svg' width='" + size +
                     "' font-family='sans-serif' font-size='12'>\n"
                     "<rect width='100%' height='100%' fill='white'/>\n";
  double x = 0, y = 0;
  for (const PlotPanel& panel : panels) {
    text.append("<g transform='translate(").append(number(x)).append(" ").append(number(y));
    text.append(")'>\n").append(Panel(panel).svg()).append("</g>\n");
    y += x > 0 ? kHeight : 0;
    x = x > 0 ? 0 : kWidth;
  }
  return text + "</svg>\n";
}

}  // namespace troika
