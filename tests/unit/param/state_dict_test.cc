// Parts of tensors, by slices and by flat ranges, make the whole again.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/param/state_dict.h>

namespace troika {
namespace {

// Rows of columns [1, 4) of a 3 x 5 matrix, and of these 9 elements those from the third on.
TEST(ShardDescriptor, CopiesThereAndBack) {
  ShardDescriptor shard;
  shard.shape = {3, 5};
  shard.slice = {1, 1, 4};
  shard.begin = 2;
  shard.count = 5;
  const at::Tensor matrix = at::arange(15, at::kDouble).view({3, 5});
  const at::Tensor part = at::empty({5}, at::kDouble);
  copy_from_whole(shard, matrix, part);
  EXPECT_TRUE(at::equal(part, at::tensor({3.0, 6.0, 7.0, 8.0, 11.0}, at::kDouble)));
  const at::Tensor other = at::zeros({3, 5}, at::kDouble);
  copy_into_whole(shard, part, other);
  EXPECT_EQ(other.ne(0).sum().item<int>(), 5);
  EXPECT_TRUE(at::equal(other.where(other.ne(0), matrix), matrix));
}

TEST(ShardDescriptor, ANumberIsAWholeTensor) {
  const ShardDescriptor shard = ShardDescriptor::whole({}, true);
  EXPECT_TRUE(shard.owns_all());
  const at::Tensor number = at::zeros({}, at::kLong);
  copy_into_whole(shard, at::tensor({7}, at::kLong), number);
  EXPECT_EQ(number.item<int>(), 7);
  EXPECT_FALSE(ShardDescriptor::whole({2, 3}, false).owns_all());
}

TEST(StateDict, NumbersHaveTypes) {
  StateDict state;
  state.set("step", std::int64_t{4});
  state.set("loss_scale", 2.0);
  EXPECT_EQ(state.integer("step"), 4);
  EXPECT_EQ(state.number("loss_scale"), 2.0);
  EXPECT_THROW((void)state.integer("loss_scale"), DataError);
  EXPECT_THROW((void)state.number("tokens"), DataError);
}

}  // namespace
}  // namespace troika
