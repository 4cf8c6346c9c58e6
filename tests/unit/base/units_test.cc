#include <gtest/gtest.h>
#include <troika/base/units.h>

#include <cmath>
#include <limits>

namespace troika {
namespace {

TEST(Units, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1024ULL * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(1288490189), "1.2 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "16.0 EiB");
}

TEST(Units, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(0.5), "0.5");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(999.96), "1.0 k");
  EXPECT_EQ(format_count(12345), "12.3 k");
  EXPECT_EQ(format_count(999960), "1.0 M");
  EXPECT_EQ(format_count(-4.5e6), "-4.5 M");
  EXPECT_EQ(format_count(std::nan("")), "?");
  EXPECT_EQ(format_count(HUGE_VAL), "?");
}

TEST(Units, Durations) {
  EXPECT_EQ(format_duration(0), "0 ns");
  EXPECT_EQ(format_duration(850e-9), "850 ns");
  EXPECT_EQ(format_duration(45e-6), "45 us");
  EXPECT_EQ(format_duration(0.9999e-3), "1.0 ms");
  EXPECT_EQ(format_duration(4.5e-3), "4.5 ms");
  EXPECT_EQ(format_duration(0.045), "45 ms");
  EXPECT_EQ(format_duration(0.9999), "1.0 s");
  EXPECT_EQ(format_duration(12.34), "12.3 s");
  EXPECT_EQ(format_duration(59.96), "1 min 00 s");
  EXPECT_EQ(format_duration(185), "3 min 05 s");
  EXPECT_EQ(format_duration(3599.6), "1 h 00 min");
  EXPECT_EQ(format_duration(3725), "1 h 02 min");
  EXPECT_EQ(format_duration(86399), "1 d 00 h");
  EXPECT_EQ(format_duration(2 * 86400 + 3 * 3600), "2 d 03 h");
  EXPECT_EQ(format_duration(-12.3), "-12.3 s");
  EXPECT_EQ(format_duration(HUGE_VAL), "?");
  EXPECT_EQ(format_duration(8.64e18), "100000000000000 d");
}

TEST(Units, ReadsSizes) {
  EXPECT_EQ(parse_bytes("1"), 1);
  EXPECT_EQ(parse_bytes("4K"), 4096);
  EXPECT_EQ(parse_bytes("80G"), std::int64_t{80} << 30);
  EXPECT_EQ(parse_bytes("1024G"), std::int64_t{1} << 40);
  for (const char* wrong :
       {"", "K", "0", "-1", "4X", "4KB", " 4", "1025G", "99999999999999999999"}) {
    EXPECT_EQ(parse_bytes(wrong), std::nullopt) << wrong;
  }
}

TEST(Units, Rates) {
  EXPECT_EQ(format_rate(12345, "tokens"), "12.3 k tokens/s");
  EXPECT_EQ(format_bandwidth(1.2e9), "1.2 GB/s");
  EXPECT_EQ(format_fixed(1.5, 3), "1.500");
  EXPECT_EQ(format_fixed(std::numeric_limits<double>::max(), 1).size(), 311U);
}

}  // namespace
}  // namespace troika
