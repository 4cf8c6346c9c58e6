#include <troika/base/units.h>
#include <troika/bench/plot.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace troika {
namespace {

constexpr double kWidth = 520, kHeight = 360;                       // of a panel
constexpr double kLeft = 76, kRight = 16, kTop = 40, kBottom = 56;  // around its axes
constexpr std::size_t kMostDots = 64;                               // of a line
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

// "2.5": as many digits as a tick needs.
std::string short_number(double value) {
  std::string text = format_fixed(value, 6);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string label_of(PlotUnit unit, double value) {
  switch (unit) {
    case PlotUnit::kBytes:
      return format_bytes(static_cast<std::uint64_t>(std::llround(value)));
    case PlotUnit::kSeconds:
      return format_duration(value);
    case PlotUnit::kBytesPerSecond:
      return format_bandwidth(value);
    case PlotUnit::kNumber:
      return short_number(value);
  }
  return {};
}

// From values to places along one side of the panel.
class Axis {
 public:
  // From a power of `step` to another one.
  static Axis logarithmic(double low, double high, double step, double from, double to) {
    return {std::log(low) / std::log(step), std::log(high) / std::log(step), step, from, to,
            PlotScale::kLogarithmic};
  }
  // From a multiple of 1, 2 or 5 times a power of ten to another one, about eight at most.
  static Axis linear(double low, double high, double from, double to) {
    const double range = high > low ? high - low : std::max(std::abs(high), 1e-9);
    double step = std::pow(10, std::floor(std::log10(range / 8)));
    for (const double factor : {2., 2.5, 2.}) {  // to 2, 5 and 10 times that power
      if (range / step > 8) step *= factor;
    }
    return {low / step, high / step, step, from, to, PlotScale::kLinear};
  }
  [[nodiscard]] double at(double value) const {
    const double steps =
        scale_ == PlotScale::kLinear ? value / step_ : std::log(value) / std::log(step_);
    return from_ + (to_ - from_) * (steps - low_) / (high_ - low_);
  }
  // At most about eight.
  [[nodiscard]] std::vector<double> ticks() const {
    const int steps = static_cast<int>(high_ - low_), every = (steps + 7) / 8;
    std::vector<double> values;
    for (int step = 0; step <= steps; step += every) {
      values.push_back(scale_ == PlotScale::kLinear ? (low_ + step) * step_
                                                    : std::pow(step_, low_ + step));
    }
    return values;
  }

 private:
  // `low` and `high` are in steps.
  Axis(double low, double high, double step, double from, double to, PlotScale scale)
      : step_(step),
        low_(std::floor(low + 1e-9)),
        high_(std::ceil(high - 1e-9)),
        from_(from),
        to_(to),
        scale_(scale) {
    if (high_ <= low_) high_ = low_ + 1;
  }

  double step_, low_, high_, from_, to_;
  PlotScale scale_;
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
    const double lowest = is_linear() ? std::numeric_limits<double>::lowest() : 0;
    if (high_x_ <= lowest || high_y_ <= lowest) {
      return words(kWidth / 2, kHeight / 2, "middle", "nothing");
    }
    const double right = kWidth - kRight, bottom = kHeight - kBottom;
    const Axis x = is_linear() ? Axis::linear(low_x_, high_x_, kLeft, right)
                               : Axis::logarithmic(low_x_, high_x_, 2, kLeft, right);
    const Axis y = is_linear() ? Axis::linear(low_y_, high_y_, bottom, kTop)
                               : Axis::logarithmic(low_y_, high_y_, 10, bottom, kTop);
    std::string text = words(kWidth / 2, 22, "middle", panel_.title, "font-weight='bold'");
    text += grid(x, y);
    for (std::size_t i = 0; i < panel_.series.size(); ++i) text += series(i, x, y);
    return text;
  }

 private:
  [[nodiscard]] bool is_linear() const { return panel_.scale == PlotScale::kLinear; }

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
    if (series.points.size() > kMostDots) dots.clear();
    return "<polyline fill='none' stroke-width='2' stroke='" + colour + "' points='" + path +
           "'/>\n" + dots + legend(index, colour);
  }

  // Where lines of figures over sizes, which rise, and of losses, which fall, are not.
  [[nodiscard]] std::string legend(std::size_t index, const std::string& colour) const {
    const double y = kTop + 14 + 16 * static_cast<double>(index);
    const std::string& name = panel_.series[index].name;
    if (is_linear()) {
      const double right = kWidth - kRight;
      return line(right - 30, y - 4, right - 10, y - 4, colour) + words(right - 36, y, "end", name);
    }
    return line(kLeft + 10, y - 4, kLeft + 30, y - 4, colour) + words(kLeft + 36, y, "start", name);
  }

  const PlotPanel& panel_;
  double low_x_ = std::numeric_limits<double>::max(),
         high_x_ = std::numeric_limits<double>::lowest();
  double low_y_ = low_x_, high_y_ = high_x_;
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
