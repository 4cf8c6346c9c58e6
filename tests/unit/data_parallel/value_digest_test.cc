#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/parallel/data_parallel/value_digest.h>

#include <vector>

namespace troika::detail {
namespace {

std::vector<std::uint64_t> digests(const std::vector<NamedTensor>& tensors) {
  const ValueDigest digest(tensors);
  std::vector<std::uint64_t> digests;
  for (std::uint64_t pass = 0; pass < ValueDigest::kPasses; ++pass) {
    digests.push_back(digest.of_segment(pass));
  }
  return digests;
}

TEST(ValueDigestOfAPart, SeesEachByteOnceInSoManyPasses) {
  const std::vector<NamedTensor> tensors = {
      {"a", at::zeros({50, 41}, at::kByte)},
      {"b", at::zeros({0}, at::kFloat)},
      {"c", at::zeros({3, 7, 11, 301}, at::kByte).contiguous(at::MemoryFormat::ChannelsLast)},
      {"d", at::zeros({100001}, at::kByte)}};
  ASSERT_FALSE(tensors[2].tensor.is_contiguous());
  const std::vector<std::uint64_t> before = digests(tensors);
  for (const NamedTensor& each : tensors) {
    for (std::int64_t at = 0; at < each.tensor.numel(); at += 997) {
      at::Tensor value = each.tensor.as_strided({1}, {1}, at);
      value.add_(1);
      const std::vector<std::uint64_t> after = digests(tensors);
      int differ = 0;
      for (std::size_t i = 0; i < after.size(); ++i) differ += after[i] != before[i] ? 1 : 0;
      EXPECT_EQ(differ, 1) << each.name << " " << at;
      value.sub_(1);
    }
  }
}

TEST(ValueDigestOfAPart, SeesAllOfSmallOnesInEachPass) {
  const std::vector<NamedTensor> tensors = {{"a", at::zeros({10, 10})}, {"b", at::zeros({10})}};
  const std::vector<std::uint64_t> before = digests(tensors);
  tensors[1].tensor[9].fill_(1);
  const std::vector<std::uint64_t> after = digests(tensors);
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_NE(after[i], before[i]) << i;
}

// As on ranks that have come to other memory formats.
TEST(ValueDigestOfAPart, IsTheSameInWhateverOrderOfMemory) {
  const at::Tensor rows = at::rand({9, 7, 11, 31});
  const std::vector<NamedTensor> some = {{"a", rows}};
  for (const auto& other : {rows.contiguous(at::MemoryFormat::ChannelsLast),
                            rows.transpose(0, 1).contiguous().transpose(0, 1),
                            at::cat({rows, rows}, 3).narrow(3, 0, 31)}) {
    ASSERT_FALSE(other.is_contiguous());
    EXPECT_EQ(digests(some), digests({{"a", other}}));
  }
}

TEST(ValueDigestOfAPart, SeesAnotherDtypeOrSize) {
  at::Tensor tensor = at::ones({10});
  const ValueDigest digest(std::vector<NamedTensor>{{"a", tensor}});
  const std::uint64_t before = digest.of_segment(0);
  for (const auto& other : {at::ones({10}, at::kDouble), at::ones({0}), at::ones({11})}) {
    tensor.set_data(other);
    EXPECT_NE(digest.of_segment(0), before);
  }
  tensor.set_data(at::ones({10}));
  EXPECT_EQ(digest.of_segment(0), before);
}

}  // namespace
}  // namespace troika::detail
