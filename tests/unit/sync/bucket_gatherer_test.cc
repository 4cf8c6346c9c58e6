// Alone in its group; what ranks gather of each other is in tests/ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/sync/gradients/bucket_gatherer.h>

namespace troika {
namespace {

TEST(BucketGatherer, GathersInPlaceOrIntoABuffer) {
  const at::Tensor own = at::arange(4).to(at::kFloat), whole = at::zeros({4});
  BucketGatherer gatherer({{.label = "apart", .counts = {4}, .own = own, .whole = whole},
                           {.label = "buffered", .counts = {4}, .own = own},
                           {.label = "empty", .counts = {0}, .own = own.narrow(0, 0, 0)}},
                          Group(), Seconds(30));
  const at::Tensor buffer = at::zeros({4});
  gatherer.gather(1, buffer).wait();
  EXPECT_TRUE(buffer.equal(own));
  gatherer.gather(0, whole).wait();
  EXPECT_TRUE(whole.equal(own));
  gatherer.gather(2, at::empty({0})).wait();
}

TEST(BucketGatherer, StartsAllAndWaitsForEach) {
  const at::Tensor own = at::ones({4}), whole = at::zeros({4});
  BucketGatherer gatherer({{.label = "values", .counts = {4}, .own = own, .whole = whole}}, Group(),
                          Seconds(30));
  gatherer.wait();  // for nothing
  for (const double value : {1.0, 2.0}) {
    own.fill_(value);
    gatherer.start_all();
    gatherer.wait(0);
    gatherer.wait();
    EXPECT_TRUE(whole.equal(own));
  }
}

}  // namespace
}  // namespace troika
