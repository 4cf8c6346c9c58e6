#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/bench/comm_report.h>

#include <nlohmann/json.hpp>

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CommTiming timing(const std::string& engine, std::int64_t bytes, double seconds) {
  CommTiming timing;
  timing.engine = engine;
  timing.operation = "all_reduce";
  timing.bytes = bytes;
  timing.ranks = 4;
  timing.time = timing.fastest = timing.slowest = Seconds(seconds);
  timing.repeats = 5;
  timing.operations_per_repeat = 7;
  timing.algorithm_bandwidth = static_cast<double>(bytes) / seconds;
  timing.bus_bandwidth = timing.algorithm_bandwidth * bus_factor(BenchOperation::kAllReduce, 4);
  return timing;
}

CommReport report() {
  return {"a",
          4,
          {timing("shm", 4096, 1e-6), timing("shm", 1 << 20, 1e-4), timing("gloo", 4096, 1e-4),
           timing("gloo", 1 << 20, 1e-2)},
          {{"mpi", "start it with mpirun"}}};
}

TEST(Sizes, AreNumbersUnitsAndRanges) {
  EXPECT_THAT(parse_sizes("4"), ElementsAre(4));
  EXPECT_THAT(parse_sizes("4,4K,2M,1G"), ElementsAre(4, 4096, 2 << 20, 1 << 30));
  EXPECT_THAT(parse_sizes("4:1K"), ElementsAre(4, 16, 64, 256, 1024));
  for (const char* wrong : {"", "x", "4x", "-1", "0", "4k", "K", "4,,5", "99999999999G", "4:"}) {
    EXPECT_THROW((void)parse_sizes(wrong), UsageError) << wrong;
  }
}

TEST(Sizes, AreOfWholeElements) {
  for (const char* wrong : {"3", "4,6", "1:64", "4:1023", "1001"}) {
    try {
      (void)parse_sizes(wrong);
      ADD_FAILURE() << wrong;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("is no whole number of fp32 values")) << wrong;
      EXPECT_THAT(error.hint(), HasSubstr("a multiple of 4 bytes")) << wrong;
    }
  }
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(BenchOperation::kAllReduce, 2), 1);
  EXPECT_DOUBLE_EQ(bus_factor(BenchOperation::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(BenchOperation::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(BenchOperation::kAllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(BenchOperation::kBroadcast, 4), 1);
}

TEST(CommReport, TravelsFromARank) {
  const auto timings = decode_timings(encode(report().timings));
  ASSERT_EQ(timings.size(), 4U);
  EXPECT_EQ(timings[2].engine, "gloo");
  EXPECT_EQ(timings[3].bytes, 1 << 20);
  EXPECT_DOUBLE_EQ(timings[3].time.count(), 1e-2);
  EXPECT_THROW((void)decode_timings("[{}]"), DataError);
}

TEST(CommReport, HasTheEnginesBesideEachOther) {
  const std::string text = to_text(report());
  EXPECT_LT(text.find("4.0 KiB"), text.find("1.0 MiB")) << text;
  EXPECT_LT(text.find("gloo"), text.find("1.0 MiB")) << text;
  for (const char* time : {" 1.00 us ", " 100 us ", " 10.00 ms "}) {
    EXPECT_THAT(text, HasSubstr(time));
  }
  EXPECT_THAT(text, HasSubstr("of all_reduce = algorithm bandwidth x 2 (n-1)/n"));
  EXPECT_THAT(text, HasSubstr("not measured: mpi: start it with mpirun"));
}

TEST(CommReport, SaysWhichMemoryIsMeasured) {
  EXPECT_THAT(to_text(report()), HasSubstr(", fp32; every result"));
  CommReport devices = report();
  for (CommTiming& timing : devices.timings) {
    timing.device = "cuda:0";
    timing.engine += ", staged";
  }
  const std::string text = to_text(devices);
  EXPECT_THAT(text, HasSubstr(", fp32 on cuda; every result"));
  EXPECT_THAT(text, HasSubstr("gloo, staged  "));
  EXPECT_EQ(decode_timings(encode(devices.timings)).front().device, "cuda:0");
}

TEST(CommReport, IsOneLineOfJson) {
  const std::string line = to_json(report());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json.at("results").size(), 4U);
  const auto& first = json.at("results").at(0);
  EXPECT_DOUBLE_EQ(first.at("bus_bandwidth"), 1.5 * 4096 / 1e-6);
  EXPECT_EQ(json.at("left_out").at(0).at("engine"), "mpi");
  EXPECT_EQ(json.at("bus_bandwidth_formula").at("all_reduce"), "bytes / seconds * 2 (n-1)/n");
}

TEST(CommReport, IsPlottedWithAnAxisAndALegend) {
  const std::string svg = to_svg(report());
  EXPECT_TRUE(svg.starts_with("<svg xmlns='http://www.w3.org/2000/svg'")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  for (const char* words : {">shm<", ">gloo<", ">bus bandwidth<", ">time<", ">size<",
                            ">all_reduce, 4 ranks<", ">4.0 KiB<"}) {
    EXPECT_THAT(svg, HasSubstr(words));
  }
  // Two panels with a line for each engine, and no number that is none.
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = svg.find("<polyline", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 4U);
  EXPECT_EQ(svg.find('?'), std::string::npos) << svg;
}

}  // namespace
}  // namespace troika
