// Which memory the ranks of a host fill, and who is refused for which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/plan/memory_advice.h>
#include <troika/plan/memory_report.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/run.h>

#include <string>
#include <vector>

namespace troika {
namespace {

using testing::HasSubstr;

Recipe on_device(const std::vector<std::string>& overrides = {}) {
  constexpr const char* kText = R"(
name = "on_device"
[model]
kind = "gpt"
layers = 4
dim = 128
heads = 4
ffn_dim = 512
vocab_size = 1024
seq_len = 64
[data]
kind = "random"
[train]
global_batch_size = 16
micro_batch_size = 8
precision = "fp32"
device = "cuda"
)";
  return parse_recipe(kText, "recipe.toml", overrides).recipe;
}

std::vector<RankKind> kinds_on_device(int ranks, const std::vector<std::string>& overrides = {}) {
  return predict_job(resolve_for_run(on_device(overrides), ranks), TensorPlace::kDevice);
}

constexpr std::uint64_t kHost = std::uint64_t{64} << 30;

// A host of ranks that take one device after the other, each with so many bytes.
HostMemory host_with(std::uint64_t bytes, const std::vector<std::size_t>& device_of) {
  HostMemory memory{.bytes = kHost, .device_of = device_of};
  for (std::size_t i = 0; i <= std::ranges::max(device_of); ++i) {
    memory.devices.push_back({"cuda:" + std::to_string(i), bytes, bytes});
  }
  return memory;
}

std::string refusal_of(const Recipe& recipe, int ranks, HostRanks here, const HostMemory& memory) {
  try {
    check_memory_fits(recipe, ranks, here, memory);
  } catch (const UsageError& error) {
    return std::string(error.what()) + " -> " + error.hint();
  }
  return "";
}

TEST(HostMemory, RanksOfOneDeviceShareIt) {
  const auto kinds = kinds_on_device(4);
  const std::int64_t each = kinds.back().plan.peak();
  const auto needs_on = [&](const std::vector<std::size_t>& device_of) {
    return needs_of_ranks(kinds, 0, 4, host_with(1, device_of)).devices;
  };
  EXPECT_THAT(needs_on({0, 1, 2, 3}), testing::Each(each));
  EXPECT_THAT(needs_on({0, 1, 0, 1}), testing::ElementsAre(2 * each, 2 * each));
  EXPECT_THAT(needs_on({0, 0, 0, 0}), testing::ElementsAre(4 * each));
}

// The host has samples on their way, values as they are drawn and the model as it is saved.
TEST(HostMemory, HasLittleOfARankOnADevice) {
  const auto on_host = predict_job(resolve_for_run(on_device(), 2));
  const auto kinds = kinds_on_device(2);
  const MemoryPlan &host = on_host.front().plan, &device = kinds.front().plan;
  EXPECT_EQ(host.host_bytes(false), host.peak());
  EXPECT_EQ(device.step(), host.step());
  EXPECT_LT(device.start, host.start);
  EXPECT_LE(device.saving(), host.saving());
  EXPECT_GE(device.host_bytes(false), device.masters);
  EXPECT_LT(device.host_bytes(false), device.peak() / 2);
  // Staged gradients come on top of the samples, not of what is saved between steps.
  EXPECT_GE(device.host_bytes(true), device.gradients);
  EXPECT_LT(kinds.back().plan.host_bytes(false), device.host_bytes(false));
}

TEST(HostMemory, IsJudgedWhereItIsKnown) {
  const auto kinds = kinds_on_device(2);
  const auto each = static_cast<std::uint64_t>(kinds.front().plan.peak());
  const auto fit = [&](const HostMemory& memory) {
    return most_needs(kinds, 2, 2, memory).fit(memory);
  };
  EXPECT_TRUE(fit(host_with(each, {0, 1})));
  EXPECT_FALSE(fit(host_with(each - 1, {0, 1})));
  EXPECT_FALSE(fit(host_with(each, {0, 0})));
  EXPECT_TRUE(fit(host_with(0, {0, 0})));
  HostMemory busy = host_with(each, {0, 1});
  busy.devices[1].free_bytes = each - 1;
  EXPECT_FALSE(fit(busy));
  HostMemory little = host_with(each, {0, 1});
  little.bytes = 1000;
  EXPECT_FALSE(fit(little));
}

TEST(HostMemory, NamesTheDeviceThatIsTooSmallAndTheChangeThatFits) {
  const auto each = static_cast<std::uint64_t>(kinds_on_device(2).front().plan.peak());
  const Recipe recipe = on_device();
  EXPECT_EQ(refusal_of(recipe, 2, {0, 2}, host_with(each, {0, 1})), "");
  const std::string refused = refusal_of(recipe, 2, {0, 2}, host_with(each - 1, {0, 1}));
  EXPECT_THAT(refused,
              HasSubstr("out of memory: rank 0 needs " +
                        bytes_text(static_cast<std::int64_t>(each)) + " of cuda:0, which has " +
                        bytes_text(static_cast<std::int64_t>(each - 1)) + " -> write "));
  EXPECT_THAT(refusal_of(recipe, 2, {0, 2}, host_with(each, {0, 0})),
              HasSubstr("ranks 0 to 1 need "));
  EXPECT_THAT(refusal_of(recipe, 3, {0, 3}, host_with(each, {0, 1, 0})),
              HasSubstr("ranks 0, 2 need "));
  EXPECT_THAT(refusal_of(recipe, 2, {0, 2}, host_with(1000, {0, 1})),
              HasSubstr("use a smaller model or seq_len, or more devices: even "));
  // As a rank sees it, whose device others have filled.
  HostMemory own = host_with(2 * each, {0});
  own.bytes = 0;
  own.devices[0].free_bytes = each / 2;
  EXPECT_THAT(refusal_of(recipe, 2, {1, 1}, own),
              testing::AllOf(HasSubstr("rank 1 needs "), HasSubstr(" of them free -> write ")));
}

// A device was full though its tensors were to fit: a change that needs clearly less.
TEST(HostMemory, AdvisesAChangeAfterADeviceWasFull) {
  const HostMemory memory = host_with(kHost, {0, 1});
  const std::string advice = advice_after_full_device(on_device(), 2, 2, memory);
  EXPECT_THAT(advice, testing::StartsWith("write "));
  const auto each = kinds_on_device(2).front().plan.peak();
  EXPECT_THAT(advice, testing::EndsWith("; as it is the run needs " + bytes_text(each)));
  // One rank has no one to share its state with.
  EXPECT_THAT(advice_after_full_device(on_device(), 1, 1, host_with(kHost, {0})),
              testing::Not(HasSubstr("zero_stage")));
  EXPECT_EQ(advice_after_full_device(on_device(), 2, 2, HostMemory{.bytes = kHost}), "");
}

TEST(HostMemory, IsPlannedForDevicesOfOtherMachines) {
  constexpr std::uint64_t kBytes = std::uint64_t{80} << 30;
  const HostMemory given = memory_of_planned_host("cuda", 3, kBytes);
  ASSERT_EQ(given.devices.size(), 3U);
  EXPECT_EQ(given.devices[2].name, "cuda:2");
  EXPECT_EQ(given.devices[2].total_bytes, kBytes);
  const HostMemory by_itself = memory_of_planned_host("auto", 3, kBytes);
  EXPECT_EQ(by_itself.devices.size(), 3U);
  EXPECT_EQ(by_itself.auto_precision, given.auto_precision);
  const HostMemory one = memory_of_planned_host("cuda:1", 3, kBytes);
  ASSERT_EQ(one.devices.size(), 1U);
  EXPECT_EQ(one.devices[0].name, "cuda:1");
  EXPECT_THAT(one.device_of, testing::ElementsAre(0, 0, 0));
  EXPECT_TRUE(one.is_staged);
  EXPECT_TRUE(memory_of_planned_host("cpu", 3, {}).devices.empty());
}

// Whatever the CPU of this machine computes in.
TEST(HostMemory, IsJudgedInThePrecisionOfItsDevices) {
  const Recipe automatic = on_device({"train.precision=auto", "train.device=auto"});
  for (const auto& [precision, word] :
       {std::pair(Precision::kBFloat16, "bf16"), std::pair(Precision::kFloat32, "fp32")}) {
    const std::string fixed = std::string("train.precision=") + word;
    HostMemory memory = host_with(1000, {0, 1});
    memory.auto_precision = precision;
    EXPECT_EQ(resolve_for_run(automatic, 2, precision).train.precision, precision);
    EXPECT_EQ(refusal_of(automatic, 2, {0, 2}, memory),
              refusal_of(on_device({fixed}), 2, {0, 2}, memory));
  }
}

TEST(HostMemory, IsNotJudgedForADeviceThatIsNotHere) {
  const HostMemory memory = memory_of_planned_host("hpu", 2, {});
  ASSERT_EQ(memory.devices.size(), 2U);
  const DryRun run = dry_run(resolve_for_run(on_device(), 2), 2, memory);
  EXPECT_TRUE(run.fits());
  EXPECT_THAT(to_text(run), HasSubstr("the most of 2 devices; this machine has no such device, so "
                                      "only the host's memory is judged"));
  EXPECT_THAT(to_json(run, ""), HasSubstr("\"device\":\"hpu:1\""));
  EXPECT_THAT(to_json(run, ""), HasSubstr("\"memory_bytes\":null"));
  EXPECT_THAT(to_json(run, ""), HasSubstr("\"fits\":null"));
  HostMemory little = memory;
  little.bytes = 1000;
  const DryRun too_large = dry_run(resolve_for_run(on_device(), 2), 2, little);
  EXPECT_THAT(to_json(too_large, ""), HasSubstr("\"fits\":false"));
}

}  // namespace
}  // namespace troika
