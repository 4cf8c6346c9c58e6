// Each kernel for CUDA against the host's, to a few units in the last place, dropout bit for bit;
// and twice, for the same bits. Skipped without a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/random.h>
#include <troika/device/facts.h>
#include <troika/device/plugin.h>
#include <troika/ops/adamw.h>
#include <troika/ops/attention.h>
#include <troika/ops/cross_entropy.h>
#include <troika/ops/dropout.h>
#include <troika/ops/embedding.h>
#include <troika/ops/norm.h>
#include <troika/ops/product.h>
#include <troika/ops/rotary.h>
#include <troika/ops/sums.h>

#include <vector>

#include "cuda/values.h"

namespace troika {
namespace {

at::Tensor on_gpu(const at::Tensor& tensor) {
  return tensor.to(at::kCUDA);
}

using test::epsilon;
using test::expect_near;
using test::values;
using test::wide;

class Cuda : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    const DevicePlugin& plugin = load_device_plugin();
    if (!plugin.usable()) GTEST_SKIP() << "no GPU: " << plugin.reason;
  }
  static void expect_cross_entropy(at::ScalarType type, std::int64_t classes);
  static void expect_layer_norm(at::ScalarType type, std::int64_t dim);
};

INSTANTIATE_TEST_SUITE_P(Types, Cuda,
                         testing::Values(at::kDouble, at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& type) { return c10::toString(type.param); });

TEST_P(Cuda, RmsNorm) {
  const at::Tensor x = values({131, 771}, "x", GetParam());
  const at::Tensor dy = values({131, 771}, "dy", GetParam());
  const at::Tensor weight = values({771}, "w", wide(GetParam()));
  const auto host = ops::rms_norm(x, weight, 1e-5);
  const auto gpu = ops::rms_norm(on_gpu(x), on_gpu(weight), 1e-5);
  expect_near(gpu.output, host.output);
  expect_near(gpu.reciprocal, host.reciprocal);
  const auto slopes = ops::rms_norm_backward(dy, x, weight, host.reciprocal);
  const auto gradients = [&] {
    return ops::rms_norm_backward(on_gpu(dy), on_gpu(x), on_gpu(weight), gpu.reciprocal);
  };
  const auto found = gradients();
  expect_near(found.input, slopes.input, 32);
  expect_near(found.weight, slopes.weight, 64);
  EXPECT_TRUE(gradients().weight.equal(found.weight));
}

// Rows that lanes pass in packs of 16 bytes, and rows that they cannot.
TEST_P(Cuda, LayerNorm) {
  for (const std::int64_t dim : {771, 768}) expect_layer_norm(GetParam(), dim);
}

void Cuda::expect_layer_norm(at::ScalarType type, std::int64_t dim) {
  const at::Tensor x = values({131, dim}, "x", type);
  const at::Tensor dy = values({131, dim}, "dy", type);
  const at::Tensor weight = values({dim}, "w", wide(type));
  const at::Tensor bias = values({dim}, "b", wide(type));
  expect_near(ops::layer_norm(on_gpu(x), on_gpu(weight), {}, 1e-5).output,
              ops::layer_norm(x, weight, {}, 1e-5).output);
  const auto host = ops::layer_norm(x, weight, bias, 1e-5);
  const auto gpu = ops::layer_norm(on_gpu(x), on_gpu(weight), on_gpu(bias), 1e-5);
  expect_near(gpu.output, host.output);
  const auto slopes = ops::layer_norm_backward(dy, x, weight, host.mean, host.reciprocal);
  const auto found =
      ops::layer_norm_backward(on_gpu(dy), on_gpu(x), on_gpu(weight), gpu.mean, gpu.reciprocal);
  expect_near(found.input, slopes.input, 32);
  expect_near(found.weight, slopes.weight, 64);
  expect_near(found.bias, slopes.bias, 64);
}

TEST_P(Cuda, Sums) {
  const at::Tensor x = values({1300, 770}, "x", GetParam()), gpu = on_gpu(x);
  const at::Tensor squares = ops::square_sums({gpu, gpu.flatten().narrow(0, 1, 5)}).cpu();
  const at::Tensor exact = x.to(at::kDouble);
  EXPECT_NEAR(squares[0].item<double>() / exact.square().sum().item<double>(), 1, 1e-13);
  EXPECT_NEAR(
      squares[1].item<double>() / exact.flatten().narrow(0, 1, 5).square().sum().item<double>(), 1,
      1e-13);
  expect_near(ops::column_sums(gpu, wide(GetParam())), exact.sum(0).to(wide(GetParam())), 256);
}

// A sum in fp32 of factors of few bits, which are exact here.
TEST_P(Cuda, ProductsAreAddedUp) {
  const at::Tensor left = at::arange(64 * 24, at::kDouble).view({64, 24}).remainder(7) - 3;
  const at::Tensor right = at::arange(64 * 40, at::kDouble).view({64, 40}).remainder(5) - 2;
  const at::Tensor product = left.t().matmul(right);
  const at::Tensor sum = on_gpu(at::full({24, 40}, NAN, wide(GetParam())));
  const at::Tensor a = on_gpu(left.to(GetParam())), b = on_gpu(right.to(GetParam()));
  ops::add_product_(sum, a, b, ops::Write::kOverwrite);
  EXPECT_TRUE(sum.cpu().to(at::kDouble).equal(product));
  ops::add_product_(sum, a, b, ops::Write::kAdd);
  EXPECT_TRUE(sum.cpu().to(at::kDouble).equal(2 * product));
}

TEST_P(Cuda, CrossEntropy) {
  const at::ScalarType type = GetParam();
  for (const std::int64_t classes : {1003, 50304}) expect_cross_entropy(type, classes);
}

void Cuda::expect_cross_entropy(at::ScalarType type, std::int64_t classes) {
  const at::Tensor logits = values({9, classes}, "logits", type) * 3;
  logits.narrow(1, 8, 64).fill_(-INFINITY);  // classes that are masked out
  logits[1].narrow(0, 0, 1000).fill_(-INFINITY);
  const at::Tensor targets = at::tensor({0, 1002, -100, 3, 4, -100, 5, 6, 7}, at::kLong);
  const double expected = ops::cross_entropy(logits, targets).item<double>();
  const at::Tensor found = ops::cross_entropy(on_gpu(logits), on_gpu(targets));
  EXPECT_EQ(found.scalar_type(), at::kDouble);
  EXPECT_NEAR(found.item<double>() / expected, 1, 64 * epsilon(wide(type)));
  const at::Tensor host = logits.clone(), gpu = on_gpu(logits);
  static_cast<void>(ops::cross_entropy_with_gradient_(host, targets, 0.5));
  const at::Tensor sum = ops::cross_entropy_with_gradient_(gpu, on_gpu(targets), 0.5);
  EXPECT_EQ(sum.item<double>(), found.item<double>());
  expect_near(gpu, host);
}

TEST_P(Cuda, DropoutHasTheSameBits) {
  const at::Tensor x = values({12, 9}, "x", GetParam());  // rows of 3 samples, cut anywhere
  const at::Tensor ids = at::tensor({5, 1 << 20, 7}, at::kLong);
  const ops::DropoutKey key{stream_key(1, "place"), 3};
  const at::Tensor host = ops::dropout(x, ids, 0.3, key);
  EXPECT_TRUE(ops::dropout(on_gpu(x), on_gpu(ids), 0.3, key).cpu().equal(host));
  for (const std::int64_t row : {0, 2, 5}) {
    const at::Tensor part = x.narrow(0, row, 7);
    const at::Tensor rows = ops::dropout_rows(on_gpu(part), {row, 4}, on_gpu(ids), 0.3, key);
    EXPECT_TRUE(rows.cpu().equal(host.narrow(0, row, 7)));
  }
}

TEST_P(Cuda, RowsOfTables) {
  const at::Tensor table = values({7, 130}, "table", wide(GetParam()));
  const at::Tensor rows = values({9, 130}, "rows", GetParam());
  const at::Tensor indices = at::tensor({3, 0, 3, 3, 6, 1, 0, 3, 2}, at::kLong);
  const at::Tensor host = table.clone(), gpu = on_gpu(table), again = on_gpu(table);
  ops::add_rows_(host, indices, rows);
  ops::add_rows_(gpu, on_gpu(indices), on_gpu(rows));
  ops::add_rows_(again, on_gpu(indices), on_gpu(rows));
  expect_near(gpu, host);
  EXPECT_TRUE(again.equal(gpu));
}

TEST_P(Cuda, RotaryPositions) {
  const at::Tensor heads = values({6, 48}, "heads", GetParam());
  const at::Tensor positions = at::tensor({0, 9, 3, 3, 1, 7}, at::kLong);
  const at::Tensor table =
      ops::rotary_table(10, 16, {1e4}, at::TensorOptions().dtype(wide(GetParam())));
  for (const ops::Rotation rotation : {ops::Rotation::kForward, ops::Rotation::kBackward}) {
    const at::Tensor host = heads.clone(), gpu = on_gpu(heads);
    ops::rotate_(host, positions, table, rotation);
    ops::rotate_(gpu, on_gpu(positions), on_gpu(table), rotation);
    expect_near(gpu, host);
  }
}

// Heads of 8 elements and more take LibTorch's kernels, of 6 the composite; 37 positions need
// padded masks, and 133 take cuDNN's kernels where there are some.
TEST_P(Cuda, Attention) {
  for (const auto& [head, length] : {std::pair{6, 37}, {64, 37}, {64, 133}}) {
    const std::vector<std::int64_t> shape = {2, 3, length, head};
    const at::Tensor q = values(shape, "q", GetParam()), k = values(shape, "k", GetParam());
    const at::Tensor v = values(shape, "v", GetParam()), d = values(shape, "d", GetParam());
    at::Tensor mask = at::ones({2, 1, length, length}, at::kBool).tril_();
    mask.narrow(2, 20, length - 20).narrow(3, 0, 20).zero_();  // two documents
    mask = at::zeros(mask.sizes(), GetParam()).masked_fill_(mask.logical_not(), -INFINITY);
    for (const at::Tensor& masked : {at::Tensor(), mask}) {
      const auto to_gpu = [](const at::Tensor& t) { return t.defined() ? on_gpu(t) : t; };
      const auto host = ops::attention(q, k, v, masked);
      const auto gpu = ops::attention(on_gpu(q), on_gpu(k), on_gpu(v), to_gpu(masked));
      expect_near(gpu.output, host.output, 64);
      const auto expected = ops::attention_backward(d, q, k, v, masked, host);
      const auto found =
          ops::attention_backward(on_gpu(d), on_gpu(q), on_gpu(k), on_gpu(v), to_gpu(masked), gpu);
      expect_near(found.query, expected.query, 128);
      expect_near(found.key, expected.key, 128);
      expect_near(found.value, expected.value, 128);
    }
  }
}

TEST_P(Cuda, AttentionHasTheSameBitsInEachRun) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  const std::vector<std::int64_t> shape = {2, 3, 370, 64};
  const at::Tensor q = on_gpu(values(shape, "q", GetParam())),
                   k = on_gpu(values(shape, "k", GetParam()));
  const at::Tensor v = on_gpu(values(shape, "v", GetParam())),
                   d = on_gpu(values(shape, "d", GetParam()));
  const auto forward = ops::attention(q, k, v, {});
  const auto first = ops::attention_backward(d, q, k, v, {}, forward);
  for (int run = 0; run < 10; ++run) {
    const auto again = ops::attention_backward(d, q, k, v, {}, forward);
    EXPECT_TRUE(again.query.equal(first.query));
    EXPECT_TRUE(again.key.equal(first.key));
    EXPECT_TRUE(again.value.equal(first.value));
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

TEST_P(Cuda, AdamW) {
  const at::ScalarType type = wide(GetParam());
  const auto state = [&](bool gpu) {
    std::vector<at::Tensor> all = {values({1000}, "w", type), values({1000}, "g", type),
                                   values({1000}, "m", type), values({1000}, "v", type).square()};
    for (at::Tensor& each : all) each = gpu ? on_gpu(each) : each;
    const at::Tensor scale = at::scalar_tensor(0.5, all[0].options().dtype(at::kDouble));
    for (const bool applies : {true, false}) {  // the second time all stays as it is
      ops::adamw_(all[0], all[1], all[2], all[3], scale,
                  at::scalar_tensor(applies, all[0].options().dtype(at::kBool)),
                  {0.9, 0.99, 0.3, 1e-8, 1e-3, 0.9999});
    }
    return all;
  };
  const auto host = state(false), gpu = state(true);
  for (const std::size_t i : {0, 2, 3}) expect_near(gpu[i], host[i]);
}

TEST_P(Cuda, FactsOfDevices) {
  const DeviceFacts facts = facts_of(at::Device(at::kCUDA, 0));
  EXPECT_NE(facts.name, "");
  EXPECT_GT(facts.total_bytes, 0);
  EXPECT_LE(facts.free_bytes, facts.total_bytes);
  EXPECT_GT(facts.bandwidth, 0);
  EXPECT_NE(facts.pci_bus_id, "");
  const at::Tensor held = at::empty({1 << 20}, at::device(at::kCUDA).dtype(at::kFloat));
  EXPECT_GE(facts_of(at::Device(at::kCUDA, 0)).allocator->allocated, held.nbytes());
}

}  // namespace
}  // namespace troika
