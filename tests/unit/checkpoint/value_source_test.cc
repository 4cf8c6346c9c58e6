#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/state_writer.h>
#include <troika/checkpoint/tensors.h>
#include <troika/checkpoint/value_source.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace troika {
namespace {

class ComparedValues : public testing::Test {
 protected:
  std::vector<SourcePart> parts(const at::Tensor& first, const at::Tensor& last,
                                std::uint64_t most_whole = ValueSource::kWholeBytes,
                                const std::set<std::string>& used = {"a", "b"}) const {
    const auto path = folder_.path() / "model.safetensors";
    save_tensors(path, std::vector<NamedTensor>{{"a", first}, {"b", last}});
    return ValueSource(path).parts(used, most_whole);
  }

  TemporaryFolder folder_;
};

TEST_F(ComparedValues, DifferInTheTensorThatDiffers) {
  const at::Tensor a = at::arange(5, at::kFloat), b = at::linspace(0, 1, 9);
  const std::vector<SourcePart> before = parts(a, b);
  ASSERT_EQ(before.size(), 2);
  EXPECT_EQ(before[0].name, "tensor 'a'");
  EXPECT_EQ(before[1].name, "tensor 'b'");
  EXPECT_EQ(parts(a, b), before);
  at::Tensor last = b.clone();
  last.view(at::kInt)[8] += 1;
  const std::vector<SourcePart> after = parts(a, last);
  EXPECT_EQ(after[0], before[0]);
  EXPECT_NE(after[1], before[1]);
  EXPECT_NE(parts(a, b.view({3, 3}))[1], before[1]);
  EXPECT_NE(parts(a, b.view(at::kInt))[1], before[1]);
  // What is not taken is not compared.
  EXPECT_EQ(parts(a, last, ValueSource::kWholeBytes, {"a"}), (std::vector<SourcePart>{before[0]}));
}

// A large file is not read whole: 17 pieces of 4 KiB of each tensor are.
TEST_F(ComparedValues, AreSampledWhereTheyAreMany) {
  const at::Tensor a = at::arange(5, at::kFloat), b = at::arange(1 << 18, at::kFloat);
  constexpr std::uint64_t kNone = 0;
  const std::vector<SourcePart> before = parts(a, b, kNone);
  const auto differs = [&](std::int64_t element) {
    at::Tensor changed = b.clone();
    changed.view(at::kInt)[element] += 1;
    return parts(a, changed, kNone)[1] != before[1];
  };
  EXPECT_TRUE(differs(0));
  EXPECT_TRUE(differs(1023));
  EXPECT_TRUE(differs((1 << 18) - 1));
  EXPECT_TRUE(differs((1 << 18) - 1024));
  EXPECT_FALSE(differs(2048));
  // Small tensors are whole.
  at::Tensor small = a.clone();
  small[2] = -1;
  EXPECT_NE(parts(small, b, kNone)[0], before[0]);
  const ValueSource source(folder_.path() / "model.safetensors");
  EXPECT_TRUE(source.is_sampled({"a", "b"}, kNone));
  EXPECT_TRUE(source.is_sampled({"a", "b"}, b.nbytes()));
  EXPECT_FALSE(source.is_sampled({"b"}, b.nbytes()));
  EXPECT_FALSE(source.is_sampled({"a", "b"}));
}

// Many runs begin from one checkpoint.
TEST_F(ComparedValues, OfACheckpointAreReadAgainOnlyWhereAFileHasChanged) {
  const CheckpointFolder folder(folder_.path() / "checkpoints");
  StateDict state;
  state.add("w", ShardDescriptor::whole({3}, true), at::arange(3, at::kFloat));
  StateWriter writer;
  writer.begin(state, folder.step_folder(1), "0.safetensors");
  const ShardReport report = writer.wait();
  Manifest manifest;
  manifest.step = 1;
  manifest.tensors = report.tensors;
  manifest.shards = {report.shard};
  folder.commit(manifest);
  const auto file = folder.step_folder(1) / "0.safetensors";
  const auto an_hour_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  const auto verify = [&] {
    DigestCache cache(folder_.path() / "cache");
    ValueSource(folder.step_folder(1)).verify(0, cache);
    cache.save();
  };
  std::filesystem::last_write_time(file, an_hour_ago);
  verify();
  std::string bytes = read_file(file, 1 << 20);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(file, std::ios::binary | std::ios::in) << bytes;
  std::filesystem::last_write_time(file, an_hour_ago);
  verify();  // nothing says that it has changed
  std::filesystem::last_write_time(file, an_hour_ago + std::chrono::seconds(1));
  EXPECT_THROW(verify(), DataError);
  EXPECT_THROW(verify(), DataError);  // what differs is not remembered
}

}  // namespace
}  // namespace troika
