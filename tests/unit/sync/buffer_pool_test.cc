#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/sync/gradients/buffer_pool.h>

namespace troika {
namespace {

TEST(BufferPool, HandsOutWhatWasGivenBack) {
  BufferPool pool(Group(), 3);
  const at::Tensor first = pool.acquire(1000), second = pool.acquire(1000);
  EXPECT_NE(first.const_data_ptr(), second.const_data_ptr());
  EXPECT_EQ(first.numel(), 1000);
  pool.release(first);
  EXPECT_EQ(pool.acquire(1000).const_data_ptr(), first.const_data_ptr());
  EXPECT_EQ(pool.count(), 2U);
  EXPECT_EQ(pool.bytes(), 2000);
}

TEST(BufferPool, KeepsALargeBufferForALargeNeedUpToTheUsualNumber) {
  BufferPool pool(Group(), 2);
  pool.release(pool.acquire(1000));
  const at::Tensor small = pool.acquire(10);  // a second one rather than the large one
  EXPECT_EQ(pool.bytes(), 1010);
  const at::Tensor other = pool.acquire(10);  // no third one
  EXPECT_EQ(other.numel(), 10);
  EXPECT_EQ(pool.bytes(), 1010);
}

TEST(BufferPool, ReplacesABufferThatIsTooSmall) {
  BufferPool pool(Group(), 1);
  pool.release(pool.acquire(10));
  EXPECT_EQ(pool.acquire(1000).numel(), 1000);
  EXPECT_EQ(pool.count(), 1U);
  EXPECT_EQ(pool.acquire(10).numel(), 10);  // the usual number is no limit
  EXPECT_EQ(pool.count(), 2U);
}

TEST(BufferPool, FreesWhatExceedsTheUsualNumber) {
  BufferPool pool(Group(), 2);
  const at::Tensor first = pool.acquire(10), second = pool.acquire(10), third = pool.acquire(10);
  EXPECT_EQ(pool.count(), 3U);
  pool.release(second);
  EXPECT_EQ(pool.count(), 2U);
  pool.release(first);
  pool.release(third);
  EXPECT_EQ(pool.bytes(), 20);
}

TEST(BufferPool, RefusesWhatItNeverGave) {
  BufferPool pool(Group(), 1);
  const at::Tensor buffer = pool.acquire(10);
  EXPECT_THROW(pool.release(at::empty({10}, at::kByte)), InternalError);
  pool.release(buffer);
  EXPECT_THROW(pool.release(buffer), InternalError);
}

}  // namespace
}  // namespace troika
