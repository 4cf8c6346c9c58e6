#include <gtest/gtest.h>
#include <troika/parallel/data_parallel/step_facts.h>

#include <array>

namespace troika::detail {
namespace {

// What ranks whose facts these are have after they were averaged.
template <std::size_t kRanks>
StepFacts average_of(const std::array<StepFacts, kRanks>& all) {
  StepFacts mean{.weight = 0, .present = 0};
  for (const StepFacts& each : all) {
    mean.weight += each.weight / kRanks;
    mean.present += each.present / kRanks;
    mean.checksum += each.checksum / kRanks;
    mean.checksum_squared += each.checksum_squared / kRanks;
    mean.alarm += each.alarm / kRanks;
  }
  return mean;
}

StepFacts with_checksum(double checksum) {
  return {.checksum = checksum, .checksum_squared = checksum * checksum};
}

TEST(StepFacts, AreReadAsTheyWereWritten) {
  const StepFacts facts{
      .weight = 3, .present = 1, .checksum = 15, .checksum_squared = 225, .alarm = 1};
  std::array<double, 8> memory{};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const FactsMemory at(memory.data(), dtype);
    at.write(facts);
    const StepFacts read = at.read();
    EXPECT_EQ(read.weight, 3);
    EXPECT_EQ(read.present, 1);
    EXPECT_EQ(read.checksum, 15);
    EXPECT_EQ(read.checksum_squared, 225);
    EXPECT_EQ(read.alarm, 1);
  }
}

TEST(StepFacts, TellOfOneRankAmongMany) {
  std::array<StepFacts, 64> all{};
  all.fill(with_checksum(7));
  EXPECT_FALSE(have_diverged(average_of(all), 64));
  all[5] = with_checksum(8);
  EXPECT_TRUE(have_diverged(average_of(all), 64));
  all[5] = with_checksum(7);
  all[9].alarm = 1;
  EXPECT_TRUE(have_diverged(average_of(all), 64));
}

TEST(StepFacts, LeaveChecksumsAloneWhereARankHasNoBatch) {
  std::array<StepFacts, 3> all{};
  all.fill(with_checksum(7));
  all[1] = {.weight = 0, .present = 0};
  EXPECT_FALSE(have_diverged(average_of(all), 3));
  EXPECT_TRUE(any_present(average_of(all), 3));
  all.fill({.weight = 0, .present = 0});
  EXPECT_FALSE(any_present(average_of(all), 3));
}

}  // namespace
}  // namespace troika::detail
