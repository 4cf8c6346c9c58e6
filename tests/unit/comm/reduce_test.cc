#include <troika/comm/reduce.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace troika {
namespace {

at::Tensor reduced(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  std::vector<const std::byte*> pointers;
  for (const at::Tensor& input : inputs) {
    pointers.push_back(static_cast<const std::byte*>(input.const_data_ptr()));
  }
  at::Tensor output = at::empty_like(inputs[0]);
  reduce_in_rank_order(output.scalar_type(), op, pointers,
                       static_cast<std::byte*>(output.mutable_data_ptr()), output.numel());
  return output;
}

at::Tensor one(double value, at::ScalarType dtype) {
  return at::full({1}, value, dtype);
}

TEST(ReduceInRankOrder, KeepsTheOrderOfMembers) {
  const std::vector<at::Tensor> inputs = {one(1e16, at::kDouble), one(1, at::kDouble),
                                          one(-1e16, at::kDouble)};
  EXPECT_EQ(reduced(inputs, ReduceOp::kSum).item<double>(), (1e16 + 1.0) + -1e16);
  const std::vector<at::Tensor> other = {inputs[0], inputs[2], inputs[1]};
  EXPECT_EQ(reduced(other, ReduceOp::kSum).item<double>(), 1.0);
}

TEST(ReduceInRankOrder, RoundsNarrowFloatsOnce) {
  // In bf16, 256 + 1 is 256; in fp32 the ones add up first to what bf16 can hold.
  const std::vector<at::Tensor> inputs = {one(256, at::kBFloat16), one(1, at::kBFloat16),
                                          one(1, at::kBFloat16)};
  EXPECT_EQ(reduced(inputs, ReduceOp::kSum).to(at::kFloat).item<float>(), 258.0f);
  // In fp16, 60000 + 60000 is infinite, but the average is not.
  const std::vector<at::Tensor> large = {one(60000, at::kHalf), one(60000, at::kHalf)};
  EXPECT_EQ(reduced(large, ReduceOp::kAverage).to(at::kFloat).item<float>(), 60000.0f);
}

TEST(ReduceInRankOrder, DividesAverages) {
  constexpr std::int64_t kCount = 1003;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const double smallest = dtype == at::kFloat ? -149 : -1074;
    for (int members = 1; members <= 8; ++members) {
      std::vector<at::Tensor> inputs;
      at::Tensor sum = at::zeros({kCount}, dtype);
      for (int member = 0; member < members; ++member) {
        // From the smallest subnormal numbers up.
        const at::Tensor exponents = at::linspace(smallest, 100, kCount, at::kDouble);
        inputs.push_back((at::randn({kCount}, at::kDouble) * at::exp2(exponents)).to(dtype));
        sum = member == 0 ? inputs[0] : sum + inputs.back();
      }
      EXPECT_TRUE(
          at::equal(reduced(inputs, ReduceOp::kAverage), sum.div(at::full_like(sum, members))))
          << members;
    }
  }
}

TEST(ReduceInRankOrder, WrapsIntegersAround) {
  EXPECT_EQ(
      reduced({one(200, at::kByte), one(100, at::kByte)}, ReduceOp::kSum).item<std::uint8_t>(), 44);
  const at::Tensor largest = at::full({1}, std::numeric_limits<std::int64_t>::max(), at::kLong);
  EXPECT_EQ(reduced({largest, one(1, at::kLong)}, ReduceOp::kSum).item<std::int64_t>(),
            std::numeric_limits<std::int64_t>::min());
}

TEST(ReduceInRankOrder, HandsOnNaNsFromEitherSide) {
  const at::Tensor nan = one(std::nan(""), at::kFloat);
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
    EXPECT_TRUE(std::isnan(reduced({nan, one(1, at::kFloat)}, op).item<float>()));
    EXPECT_TRUE(std::isnan(reduced({one(1, at::kFloat), nan}, op).item<float>()));
  }
}

TEST(ReduceInRankOrder, TakesAnInputAsOutput) {
  std::vector<at::Tensor> inputs = {at::arange(5000, at::kInt), at::ones({5000}, at::kInt)};
  const at::Tensor expected = inputs[0] + 1;
  for (const int output : {0, 1}) {
    std::vector<at::Tensor> fresh = {inputs[0].clone(), inputs[1].clone()};
    const std::vector<const std::byte*> pointers = {
        static_cast<const std::byte*>(fresh[0].const_data_ptr()),
        static_cast<const std::byte*>(fresh[1].const_data_ptr())};
    reduce_in_rank_order(
        at::kInt, ReduceOp::kSum, pointers,
        static_cast<std::byte*>(fresh[static_cast<std::size_t>(output)].mutable_data_ptr()), 5000);
    EXPECT_TRUE(at::equal(fresh[static_cast<std::size_t>(output)], expected));
  }
}

}  // namespace
}  // namespace troika
