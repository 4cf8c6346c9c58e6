// Plans of memory against the test device: what it takes, what it is refused for, and that a device
// of just that size is enough.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/plan/memory_advice.h>
#include <troika/plan/memory_report.h>
#include <troika/train/run.h>
#include <troika/train/tensor_memory.h>

#include "device/backend/checks.h"
#include "device/backend/test_device.h"
#include "ranks/layouts.h"
#include "ranks/own_module/own_world.h"

namespace troika::test {
namespace {

Recipe larger_gpt(const Rank& rank, const std::string& device) {
  Recipe recipe = gpt_recipe();
  recipe.name = device;
  recipe.runs_dir = rank.folder().string();
  recipe.train.device = device;
  recipe.train.steps = 2;
  recipe.train.micro_batch_size = 4;
  recipe.train.precision = Precision::kFloat32;
  recipe.train.evaluate_every_steps = 2;
  auto& gpt = recipe.model.as<GptOptions>();
  gpt.layers = 4;
  gpt.dim = 128;
  gpt.heads = gpt.kv_heads = 4;
  gpt.head_dim = 32;
  gpt.ffn_dim = 512;
  gpt.vocab_size = 2000;
  gpt.seq_len = 64;
  return recipe;
}

std::string refusal_of(const Recipe& recipe, const Rank& rank, HostRanks here,
                       const HostMemory& memory) {
  try {
    check_memory_fits(recipe, rank.size(), here, memory);
  } catch (const UsageError& error) {
    return std::string(error.what()) + " -> " + error.hint();
  }
  return "";
}

RANK_TEST(DeviceMemoryPlan, IsWhatTheDeviceTakes, 1, 2) {
  const ExpectNoDeviceFault no_fault;
  for (const std::int64_t stage : {0, 2}) {
    if (rank.size() == 1 && stage > 0) continue;
    Recipe recipe = larger_gpt(rank, "hpu");
    recipe.name += std::to_string(stage);
    recipe.parallel.zero_stage = stage;
    const auto plan =
        predict_memory(resolve_for_run(recipe, rank.size()), rank.index(), TensorPlace::kDevice);
    reset_test_devices();
    // What an allocator keeps and cannot give out at once comes on top.
    const LimitDeviceMemory fitting(static_cast<std::size_t>(plan.peak()) * 5 / 4, rank.index());
    (void)run_training(recipe, world_of(rank, recipe.name), {});
    const auto measured = static_cast<double>(tensor_memory(test_device(rank.index())).peak_bytes);
    EXPECT_NEAR(static_cast<double>(plan.peak()), measured, 0.1 * measured) << "stage " << stage;
  }
}

// One that the launcher sees, by the size of the devices.
RANK_TEST(DeviceMemoryPlan, IsRefusedByTheSizeOfTheDevice, 2) {
  const Recipe recipe = larger_gpt(rank, "hpu");
  const HostRanks here{0, 2};
  EXPECT_EQ(refusal_of(recipe, rank, here, memory_of_this_host("hpu", {0, 2})), "");
  const LimitDeviceMemory little(std::size_t{8} << 20, 1);
  const HostMemory memory = memory_of_this_host("hpu", {0, 2});
  ASSERT_EQ(memory.devices.size(), 2U);
  EXPECT_TRUE(memory.is_staged);
  const std::string refused = refusal_of(recipe, rank, here, memory);
  EXPECT_THAT(refused, testing::HasSubstr("out of memory: rank 1 needs "));
  EXPECT_THAT(refused, testing::HasSubstr(" of hpu:1, which has 8.0 MiB -> "));
  const auto advised = dry_run(resolve_for_run(recipe, 2), 2, memory);
  EXPECT_FALSE(advised.fits());
  EXPECT_THAT(to_text(advised), testing::HasSubstr("hpu:1 needs "));
  EXPECT_THAT(to_text(advised), testing::HasSubstr("it has 8.0 MiB: it does not fit"));
}

// Two ranks share a device that is large enough for one of them, or that others have filled.
RANK_TEST(DeviceMemoryPlan, CountsEveryRankOfADevice, 2) {
  const Recipe recipe = larger_gpt(rank, "hpu:2");
  const auto kinds = predict_job(resolve_for_run(recipe, 2), TensorPlace::kDevice);
  const auto each = static_cast<std::size_t>(kinds.front().plan.peak());
  const LimitDeviceMemory enough_for_one(each * 3 / 2, 2);
  const HostMemory shared = memory_of_this_host("hpu:2", {0, 2});
  EXPECT_EQ(shared.devices.size(), 1U);
  EXPECT_THAT(refusal_of(recipe, rank, {0, 2}, shared),
              testing::HasSubstr("ranks 0 to 1 need " +
                                 bytes_text(2 * static_cast<std::int64_t>(each)) + " of hpu:2"));
  EXPECT_EQ(refusal_of(recipe, rank, {1, 1}, free_memory_of(test_device(2), 1)), "");
  const at::Tensor other =
      at::empty({static_cast<std::int64_t>(each)}, at::dtype(at::kByte).device(test_device(2)));
  EXPECT_THAT(refusal_of(recipe, rank, {1, 1}, free_memory_of(test_device(2), 1)),
              testing::HasSubstr(" of them free -> write "));
}

}  // namespace
}  // namespace troika::test
