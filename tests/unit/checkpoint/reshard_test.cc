#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/reshard.h>
#include <troika/checkpoint/state_writer.h>
#include <troika/checkpoint/tensor_diff.h>
#include <troika/checkpoint/tensor_source.h>
#include <troika/checkpoint/tensors.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>

namespace troika {
namespace {

constexpr std::int64_t kStep = 7;

// Two ranks that split columns of a matrix, a vector of one, a scalar and an empty tensor.
class Reshard : public testing::Test {
 protected:
  Reshard() : from_(folder_ / "from"), to_(folder_ / "to") {
    const at::Tensor matrix = at::arange(20, at::kDouble).view({5, 4});
    Manifest manifest;
    manifest.step = kStep;
    manifest.numbers = {{"step", kStep}};
    manifest.recipe = "name = \"a\"\n";
    for (int rank = 0; rank < 2; ++rank) {
      StateDict state;
      const ShardDescriptor half{{5, 4}, {1, 2 * rank, 2 * rank + 2}, 0, 10, 10};
      state.add("matrix", half, matrix.narrow(1, std::int64_t{2} * rank, 2).reshape({-1}));
      if (rank == 1) {
        state.add("vector", ShardDescriptor::whole({3}, true), at::tensor({1, 2, 3}, at::kLong));
        state.add("scalar", ShardDescriptor::whole({}, true), at::tensor({0.5F}));
        state.add("empty", ShardDescriptor::whole({0}, true), at::empty({0}));
      }
      StateWriter writer;
      writer.begin(state, from_.step_folder(kStep), shard_file_name(rank, 2, "first"));
      ShardReport report = writer.wait();
      EXPECT_EQ(report.error, "");
      manifest.tensors.insert(report.tensors.begin(), report.tensors.end());
      manifest.shards.push_back(std::move(report.shard));
    }
    from_.commit(manifest);
    make_folders(to_.path());
  }

  const TemporaryFolder folder_;
  const CheckpointFolder from_, to_;
};

TEST_F(Reshard, KeepsEveryValueInAnyNumberOfFiles) {
  for (const int files : {1, 3, 7}) {
    const Manifest manifest = reshard_checkpoint(from_, kStep, to_, files);
    EXPECT_EQ(manifest.shards.size(), files);
    EXPECT_EQ(manifest.numbers, from_.read(kStep).numbers);
    EXPECT_EQ(manifest.recipe, from_.read(kStep).recipe);
    const auto before = open_checkpoint_tensors(from_, kStep);
    const auto after = open_checkpoint_tensors(to_, kStep);
    const TensorDiff diff = compare_tensors(*before, *after);
    EXPECT_TRUE(diff.is_same());
    EXPECT_EQ(diff.same, before->entries().size());
  }
}

// Most of the files have no part of the vector, and some nothing at all.
TEST_F(Reshard, WritesMoreFilesThanThereAreElements) {
  const Manifest manifest = reshard_checkpoint(from_, kStep, to_, 50);
  ASSERT_EQ(manifest.shards.size(), 50);
  EXPECT_GT(
      std::ranges::count_if(manifest.shards, [](const auto& each) { return each.parts.empty(); }),
      0);
  const auto before = open_checkpoint_tensors(from_, kStep);
  const auto after = open_checkpoint_tensors(to_, kStep);
  EXPECT_EQ(compare_tensors(*before, *after).same, before->entries().size());
}

TEST_F(Reshard, InItsOwnFolderLeavesTheNewFilesAlone) {
  const auto before = open_checkpoint_tensors(from_, kStep);
  const at::Tensor matrix = before->load(before->at("matrix"));
  const Manifest manifest = reshard_checkpoint(from_, kStep, from_, 1);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& each :
       std::filesystem::directory_iterator(from_.step_folder(kStep))) {
    ++files;
  }
  EXPECT_EQ(files, 1 + manifest.shards.size());
  const auto after = open_checkpoint_tensors(from_, kStep);
  EXPECT_TRUE(after->load(after->at("matrix")).equal(matrix));
}

TEST_F(Reshard, NamesAStepThatIsNotThere) {
  try {
    (void)reshard_checkpoint(from_, kStep + 1, to_, 2);
    ADD_FAILURE() << "there is no such step";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("step-00000008"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(to_.steps().empty());
}

TEST_F(Reshard, RefusesADamagedOne) {
  const auto file = from_.step_folder(kStep) / from_.read(kStep).shards[0].file;
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(-1, std::ios::end).put('x');
  damaged.close();
  EXPECT_THROW((void)reshard_checkpoint(from_, kStep, to_, 2), DataError);
  EXPECT_TRUE(to_.steps().empty());
}

TEST(TensorDiffOf, ComparesValuesWhateverTheirType) {
  const TemporaryFolder folder;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto save = [&](const char* name, const std::vector<NamedTensor>& tensors) {
    save_tensors(folder / name, tensors);
    return open_tensor_file(folder / name);
  };
  const at::Tensor one = at::tensor({1.0F, 2.0F, nan});
  const auto a = save("a", {{"same", one}, {"apart", one}, {"nan", one}, {"mine", one}});
  const auto b = save("b", {{"same", one.to(at::kBFloat16)},
                            {"apart", at::tensor({1.0F, 4.5F, nan})},
                            {"nan", at::tensor({1.0F, 2.0F, 3.0F})}});
  const TensorDiff diff = compare_tensors(*a, *b);
  EXPECT_EQ(diff.same, 1);
  ASSERT_EQ(diff.differing.size(), 2);
  EXPECT_EQ(diff.differing[0].name, "nan");
  EXPECT_TRUE(std::isinf(diff.differing[0].largest));
  EXPECT_EQ(diff.differing[1].largest, 2.5);
  EXPECT_EQ(diff.only_in_a, std::vector<std::string>{"mine"});
  EXPECT_TRUE(diff.only_in_b.empty());
}

// Whole numbers that fp64 does not tell apart, beside those that it does; values without an
// element, and of other shapes and types.
TEST(TensorDiffOf, ComparesWholeNumbersExactly) {
  const TemporaryFolder folder;
  const auto save = [&](const char* name, const std::vector<NamedTensor>& tensors) {
    save_tensors(folder / name, tensors);
    return open_tensor_file(folder / name);
  };
  constexpr std::int64_t kBig = (std::int64_t{1} << 53) + 1, kLeast = INT64_MIN;
  const auto a = save("a", {{"big", at::tensor({kBig, std::int64_t{0}}, at::kLong)},
                            {"least", at::tensor({kLeast}, at::kLong)},
                            {"narrow", at::tensor({3, -4}, at::kInt)},
                            {"flags", at::tensor({1, 0}, at::kLong).to(at::kBool)},
                            {"none", at::empty({0}, at::kLong)},
                            {"scalar", at::full({}, 5, at::kLong)}});
  const auto b = save("b", {{"big", at::tensor({kBig - 1, std::int64_t{0}}, at::kLong)},
                            {"least", at::tensor({kLeast + 3}, at::kLong)},
                            {"narrow", at::tensor({3, -4}, at::kLong)},
                            {"flags", at::tensor({1, 0}, at::kByte)},
                            {"none", at::empty({0}, at::kFloat)},
                            {"scalar", at::full({1}, 5, at::kLong)}});
  const TensorDiff diff = compare_tensors(*a, *b);
  EXPECT_EQ(diff.same, 3);
  ASSERT_EQ(diff.differing.size(), 3);
  EXPECT_EQ(diff.differing[0].unlike, "[] and [1]");
  EXPECT_EQ(diff.differing[1].name, "least");
  EXPECT_EQ(diff.differing[1].largest, 3);
  EXPECT_EQ(diff.differing[1].largest_value, 0x1p63);
  EXPECT_EQ(diff.differing[2].name, "big");
  EXPECT_EQ(diff.differing[2].largest, 1);
  EXPECT_EQ(diff.differing[2].largest_value, 0x1p53);
}

TEST(TensorDiff, OfAModelLeavesOutTheOptimizerAndDataRanks) {
  const TemporaryFolder folder;
  const auto save = [&](const char* name, const std::vector<NamedTensor>& tensors) {
    save_tensors(folder / name, tensors);
    return open_tensor_file(folder / name);
  };
  const at::Tensor one = at::ones({2});
  const auto model = save("model", {{"weight", one}, {"mean", one}});
  const auto checkpoint = save(
      "checkpoint", {{"weight", one}, {"replica.0.mean", one}, {"optimizer.exp_avg.weight", one}});
  EXPECT_EQ(compare_tensors(*model, *checkpoint).only_in_b.size(), 2);
  for (const TensorDiff& diff : {compare_tensors(*model, *checkpoint, DiffScope::kModel),
                                 compare_tensors(*checkpoint, *model, DiffScope::kModel)}) {
    EXPECT_TRUE(diff.is_same());
    EXPECT_EQ(diff.same, 1);
  }
  const auto another = save("another", {{"weight", one}, {"bias", one}});
  EXPECT_EQ(compare_tensors(*model, *another, DiffScope::kModel).only_in_b,
            std::vector<std::string>{"bias"});
}

}  // namespace
}  // namespace troika
