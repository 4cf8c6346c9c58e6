// The arithmetic of each kernel for CUDA, run on the host (emulator.h), against the host's kernels.
#include "cuda/emulator.h"
// The emulator comes first.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/random.h>
#include <troika/ops/adamw.h>
#include <troika/ops/cross_entropy.h>
#include <troika/ops/dropout.h>
#include <troika/ops/norm.h>
#include <troika/ops/operators.h>
#include <troika/ops/rotary.h>
#include <troika/ops/cuda/adamw.cu>
#include <troika/ops/cuda/cross_entropy.cu>
#include <troika/ops/cuda/dropout.cu>
#include <troika/ops/cuda/norm.cu>
#include <troika/ops/cuda/rotary.cu>
#include <troika/ops/cuda/sums.cu>

#include <vector>

#include "cuda/values.h"

namespace troika {
namespace {

namespace kernels = ops::cuda;

kernels::Scalar scalar_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return kernels::Scalar::kDouble;
    case at::kFloat:
      return kernels::Scalar::kFloat;
    case at::kHalf:
      return kernels::Scalar::kHalf;
    default:
      return kernels::Scalar::kBFloat16;
  }
}

class EmulatedCuda : public testing::TestWithParam<at::ScalarType> {
 protected:
  [[nodiscard]] kernels::Scalar scalar() const { return scalar_of(GetParam()); }
  [[nodiscard]] at::ScalarType wide() const { return test::wide(GetParam()); }
  void expect_layer_norm(std::int64_t dim) const;
};

INSTANTIATE_TEST_SUITE_P(Types, EmulatedCuda,
                         testing::Values(at::kDouble, at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& type) { return c10::toString(type.param); });

TEST_P(EmulatedCuda, RmsNorm) {
  constexpr std::int64_t kRows = 67, kDim = 300;
  const at::Tensor x = test::values({kRows, kDim}, "x", GetParam());
  const at::Tensor dy = test::values({kRows, kDim}, "dy", GetParam());
  const at::Tensor weight = test::values({kDim}, "w", wide());
  const auto host = ops::rms_norm(x, weight, 1e-5);
  const at::Tensor output = at::empty_like(x), reciprocal = at::empty({kRows}, weight.options());
  launch(kernels::Norm{x.const_data_ptr(), weight.const_data_ptr(), nullptr, output.data_ptr(),
                       nullptr, reciprocal.data_ptr(), kRows, kDim, 1e-5},
         scalar(), nullptr);
  test::expect_near(output, host.output);
  test::expect_near(reciprocal, host.reciprocal);

  const auto slopes = ops::rms_norm_backward(dy, x, weight, reciprocal);
  const at::Tensor dx = at::empty_like(x), partial = at::full({2, kDim}, NAN, weight.options());
  launch(kernels::NormBackward{dy.const_data_ptr(), x.const_data_ptr(), weight.const_data_ptr(),
                               nullptr, reciprocal.const_data_ptr(), dx.data_ptr(),
                               partial.data_ptr(), nullptr, kRows, kDim},
         scalar(), nullptr);
  test::expect_near(dx, slopes.input, 32);
  test::expect_near(partial.sum(0), slopes.weight, 64);
}

TEST_P(EmulatedCuda, Sums) {
  const at::Tensor x = test::values({130, 301}, "x", GetParam());
  const at::Tensor exact = x.to(at::kDouble);
  const at::Tensor squares = at::zeros({kernels::kSquareParts}, at::kDouble);
  launch(kernels::SquareSum{x.const_data_ptr(), squares.data_ptr<double>(), x.numel()}, scalar(),
         nullptr);
  EXPECT_NEAR(squares.sum().item<double>() / exact.square().sum().item<double>(), 1, 1e-13);
  for (const std::int64_t dim : {301, 300}) {
    const at::Tensor rows = x.narrow(1, 0, dim).contiguous();
    const at::Tensor parts = at::full({3, dim}, NAN, wide());
    launch(kernels::ColumnSums{rows.const_data_ptr(), parts.data_ptr(), 130, dim}, scalar(),
           nullptr);
    test::expect_near(parts.sum(0), rows.to(at::kDouble).sum(0).to(wide()), 64);
  }
}

// Rows that a lane passes in packs of 16 bytes, and rows that it cannot.
TEST_P(EmulatedCuda, LayerNorm) {
  for (const std::int64_t dim : {300, 304}) expect_layer_norm(dim);
}

void EmulatedCuda::expect_layer_norm(std::int64_t dim) const {
  constexpr std::int64_t kRows = 67;
  const at::Tensor x = test::values({kRows, dim}, "x", GetParam());
  const at::Tensor dy = test::values({kRows, dim}, "dy", GetParam());
  const at::Tensor weight = test::values({dim}, "w", wide());
  const at::Tensor bias = test::values({dim}, "b", wide());
  const at::Tensor output = at::empty_like(x), mean = at::empty({kRows}, weight.options()),
                   reciprocal = at::empty_like(mean);
  for (const at::Tensor& shift : {at::Tensor(), bias}) {
    launch(kernels::Norm{x.const_data_ptr(), weight.const_data_ptr(),
                         shift.defined() ? shift.const_data_ptr() : nullptr, output.data_ptr(),
                         mean.data_ptr(), reciprocal.data_ptr(), kRows, dim, 1e-5},
           scalar(), nullptr);
    test::expect_near(output, ops::layer_norm(x, weight, shift, 1e-5).output);
  }
  const auto slopes = ops::layer_norm_backward(dy, x, weight, mean, reciprocal);
  const at::Tensor dx = at::empty_like(x), of_weight = at::full({2, dim}, NAN, weight.options()),
                   of_bias = of_weight.clone();
  launch(kernels::NormBackward{dy.const_data_ptr(), x.const_data_ptr(), weight.const_data_ptr(),
                               mean.const_data_ptr(), reciprocal.const_data_ptr(), dx.data_ptr(),
                               of_weight.data_ptr(), of_bias.data_ptr(), kRows, dim},
         scalar(), nullptr);
  test::expect_near(dx, slopes.input, 32);
  test::expect_near(of_weight.sum(0), slopes.weight, 64);
  test::expect_near(of_bias.sum(0), slopes.bias, 64);
}

// Rows that a thread passes in packs of 16 bytes, and rows that it cannot.
TEST_P(EmulatedCuda, CrossEntropy) {
  for (const std::int64_t classes : {603, 2064}) {
    const at::Tensor logits = test::values({7, classes}, "logits", GetParam()) * 3;
    logits.narrow(1, 8, 64).fill_(-INFINITY);  // classes that are masked out
    logits[1].narrow(0, 0, 600).fill_(-INFINITY);
    const at::Tensor targets = at::tensor({0, 602, -100, 255, 256, 511, 7}, at::kLong);
    const at::Tensor host = logits.clone();
    const double expected = ops::cross_entropy_with_gradient_(host, targets, 0.5).item<double>();
    for (const bool writes : {false, true}) {
      const at::Tensor own = logits.clone(), losses = at::full({7}, NAN, at::kDouble);
      launch(kernels::CrossEntropy{own.data_ptr(), targets.const_data_ptr<std::int64_t>(),
                                   losses.data_ptr<double>(), 7, classes, writes, 0.5},
             scalar(), nullptr);
      EXPECT_NEAR(losses.sum().item<double>() / expected, 1, 64 * test::epsilon(wide()));
      if (writes) {
        test::expect_near(own, host);
      } else {
        EXPECT_TRUE(own.equal(logits));
      }
    }
  }
}

TEST_P(EmulatedCuda, DropoutHasTheSameBits) {
  const at::Tensor x = test::values({18, 9}, "x", GetParam());
  const at::Tensor ids = at::tensor({5, 1 << 20, 7}, at::kLong);
  const std::uint64_t stream = stream_key(1, "place");
  const ops::DropoutKey key{stream, 0};
  const at::Tensor host = ops::dropout(x, ids, 0.3, key);
  for (const std::int64_t first : {0, 5, 53}) {  // of samples of 54 elements
    const at::Tensor part = x.flatten().narrow(0, first, 61), out = at::empty_like(part);
    launch(
        kernels::Dropout{part.const_data_ptr(), out.data_ptr(), ids.const_data_ptr<std::int64_t>(),
                         first, 61, 54, mix_bits(stream), ops::dropout_threshold(0.3), 1 / 0.7},
        scalar(), nullptr);
    EXPECT_TRUE(out.equal(host.flatten().narrow(0, first, 61)));
  }
}

TEST_P(EmulatedCuda, RotaryPositions) {
  const at::Tensor heads = test::values({6, 48}, "heads", GetParam());
  const at::Tensor positions = at::tensor({0, 9, 3, 3, 1, 7}, at::kLong);
  const at::Tensor table = ops::rotary_table(10, 16, {1e4}, at::TensorOptions().dtype(wide()));
  for (const bool backward : {false, true}) {
    const at::Tensor host = heads.clone(), own = heads.clone();
    ops::rotate_(host, positions, table,
                 backward ? ops::Rotation::kBackward : ops::Rotation::kForward);
    launch(kernels::Rotation{own.data_ptr(), positions.const_data_ptr<std::int64_t>(),
                             table.const_data_ptr(), 6, 48, 8, 10, backward},
           scalar(), nullptr);
    test::expect_near(own, host, 2);
  }
}

TEST_P(EmulatedCuda, AdamW) {
  const auto state = [&] {
    return std::vector<at::Tensor>{
        test::values({1000}, "w", wide()), test::values({1000}, "g", wide()),
        test::values({1000}, "m", wide()), test::values({1000}, "v", wide()).square()};
  };
  const auto host = state(), own = state();
  ops::adamw_(host[0], host[1], host[2], host[3], at::scalar_tensor(0.5, at::kDouble),
              at::scalar_tensor(true, at::kBool), {0.9, 0.99, 0.3, 1e-8, 1e-3, 0.9999});
  const double scale = 0.5;
  for (const bool applies : {true, false}) {  // the second time all stays as it is
    launch(
        kernels::AdamW{own[0].data_ptr(), own[1].data_ptr(), own[2].data_ptr(), own[3].data_ptr(),
                       &scale, &applies, 1000, 0.9, 0.99, 0.3, 1e-8, 1e-3, 0.9999},
        scalar_of(wide()), nullptr);
    for (const std::size_t i : {0, 2, 3}) test::expect_near(own[i], host[i]);
  }
}

}  // namespace
}  // namespace troika
