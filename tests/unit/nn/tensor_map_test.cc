// Named tensors keep their order, and name what is missing.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/nn/loss_terms.h>
#include <troika/nn/tensor_map.h>

namespace troika {
namespace {

TEST(TensorMap, FindsByNameAndByPosition) {
  TensorMap map{{"features", at::ones({2})}, {"targets", at::zeros({3})}};
  EXPECT_EQ(map.size(), 2);
  EXPECT_EQ(map.at("targets").numel(), 3);
  EXPECT_TRUE(map[0].is_same(map.at("features")));
  EXPECT_FALSE(map.value_or_none(2).defined());
  map.set("targets", at::zeros({4}));
  map.set("weights", at::zeros({5}));
  EXPECT_EQ(map[1].numel(), 4);
  EXPECT_EQ(map[2].numel(), 5);
}

TEST(TensorMap, NamesWhatIsMissingOrThereTwice) {
  TensorMap map{{"features", at::ones({2})}};
  EXPECT_EQ(map.find("targets"), nullptr);
  try {
    static_cast<void>(map.at("targets"));
    ADD_FAILURE() << "found";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "no tensor is called 'targets'");
    EXPECT_EQ(error.hint(), "there are 'features'");
  }
  EXPECT_THROW(map.add("features", at::ones({2})), UsageError);
}

TEST(LossTerms, AddUpAndWeighEqually) {
  LossTerms all;
  EXPECT_EQ(all.read_sum(), 0);
  all.add(LossTerms::of(1.5, 2));
  LossTerms more{at::scalar_tensor(0.5, at::kDouble), {}};
  more.weigh_equally(3);
  all.add(more);
  EXPECT_EQ(all.read_sum(), 2);
  EXPECT_EQ(all.read_weight(), 5);
}

}  // namespace
}  // namespace troika
