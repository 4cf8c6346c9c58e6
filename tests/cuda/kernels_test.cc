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
#include <troika/ops/rotary.h>

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

TEST_P(Cuda, CrossEntropy) {
  const at::ScalarType type = wide(GetParam());
  const at::Tensor logits = values({9, 1003}, "logits", type) * 3;
  const at::Tensor targets = at::tensor({0, 1002, -100, 3, 4, -100, 5, 6, 7}, at::kLong);
  const double expected = ops::cross_entropy(logits, targets).item<double>();
  const at::Tensor found = ops::cross_entropy(on_gpu(logits), on_gpu(targets));
  EXPECT_EQ(found.scalar_type(), at::kDouble);
  EXPECT_NEAR(found.item<double>() / expected, 1, 64 * epsilon(type));
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
      ops::rotary_table(10, 16, 1e4, at::TensorOptions().dtype(wide(GetParam())));
  for (const ops::Rotation rotation : {ops::Rotation::kForward, ops::Rotation::kBackward}) {
    const at::Tensor host = heads.clone(), gpu = on_gpu(heads);
    ops::rotate_(host, positions, table, rotation);
    ops::rotate_(gpu, on_gpu(positions), on_gpu(table), rotation);
    expect_near(gpu, host);
  }
}

// Heads of 8 elements and more take LibTorch's kernels, of 6 the composite; 37 positions need
// padded masks.
TEST_P(Cuda, Attention) {
  for (const std::int64_t head : {6, 64}) {
    const std::vector<std::int64_t> shape = {2, 3, 37, head};
    const at::Tensor q = values(shape, "q", GetParam()), k = values(shape, "k", GetParam());
    const at::Tensor v = values(shape, "v", GetParam()), d = values(shape, "d", GetParam());
    at::Tensor mask = at::ones({2, 1, 37, 37}, at::kBool).tril_();
    mask.narrow(2, 20, 17).narrow(3, 0, 20).zero_();  // two documents
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

TEST_P(Cuda, AdamW) {
  const at::ScalarType type = wide(GetParam());
  const auto state = [&](bool gpu) {
    std::vector<at::Tensor> all = {values({1000}, "w", type), values({1000}, "g", type),
                                   values({1000}, "m", type), values({1000}, "v", type).square()};
    for (at::Tensor& each : all) each = gpu ? on_gpu(each) : each;
    ops::adamw_(all[0], all[1], all[2], all[3], {0.5, 0.9, 0.99, 0.3, 1e-8, 1e-3, 0.9999});
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
