#include <gmock/gmock.h>
#include <troika/bench/plot.h>

#include <string>

namespace troika {
namespace {

using testing::HasSubstr;
using testing::Not;

PlotPanel panel_of(PlotSeries series) {
  return {
      "losses",          "time", "loss", PlotUnit::kSeconds, PlotUnit::kNumber, {std::move(series)},
      PlotScale::kLinear};
}

// The axes of a panel go from x = 76 to 504, and from y = 304 up to 40.
TEST(Plots, LinearAxesBeginAndEndAtRoundNumbers) {
  const PlotPanel panel = panel_of({"a", {{0, 3.5}, {2, 1}, {4, 0.1}}});
  const std::string svg = plot_svg({&panel, 1});
  EXPECT_THAT(svg, HasSubstr("points='76.0,40.0 290.0,228.6 504.0,296.5'"));
  for (const char* label : {">0<", ">0.5<", ">3.5<", ">losses<", ">a<"}) {
    EXPECT_THAT(svg, HasSubstr(label));
  }
  EXPECT_THAT(svg, Not(HasSubstr(">4.0<")));
}

TEST(Plots, LinearAxesTakeNegativeAndEqualNumbers) {
  PlotPanel panel = panel_of({"a", {{1, -2}, {2, -1}}});
  EXPECT_THAT(plot_svg({&panel, 1}), HasSubstr("points='76.0,304.0 504.0,40.0'"));
  panel = panel_of({"a", {{1, 2}}});
  EXPECT_THAT(plot_svg({&panel, 1}), HasSubstr("<circle"));
  panel = panel_of({"a", {}});
  EXPECT_THAT(plot_svg({&panel, 1}), HasSubstr("nothing"));
}

TEST(Plots, LongLinesHaveNoDots) {
  PlotSeries series{"a", {}};
  for (int i = 0; i < 100; ++i) series.points.emplace_back(i, i);
  const PlotPanel panel = panel_of(std::move(series));
  EXPECT_THAT(plot_svg({&panel, 1}), Not(HasSubstr("<circle")));
}

}  // namespace
}  // namespace troika
