// Each kernel of host memory against the composite of ATen's operators, which every device without
// a kernel of its own runs: to a few units in the last place, dropout bit for bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/random.h>
#include <troika/ops/adamw.h>
#include <troika/ops/kernels.h>
#include <troika/ops/sums.h>

#include <cmath>
#include <limits>
#include <vector>

namespace troika::ops {
namespace {

at::Tensor values(at::IntArrayRef shape, std::string_view name, at::ScalarType type) {
  const at::Tensor tensor = at::empty(shape, at::kDouble);
  const RandomStream stream(stream_key(11, name));
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_ptr<double>()[i] = stream.normal(static_cast<std::uint64_t>(i));
  }
  return tensor.to(type);
}

// One unit in the last place of values around 1.
double epsilon(at::ScalarType type) {
  return type == at::kDouble ? 2.3e-16 : type == at::kFloat ? 1.2e-7 : 0.0079;
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, double units = 16) {
  ASSERT_EQ(found.scalar_type(), expected.scalar_type());
  ASSERT_EQ(found.sizes(), expected.sizes());
  if (found.numel() == 0) return;
  const at::Tensor exact = expected.to(at::kDouble);
  const double largest = exact.abs().max().item<double>();
  const double apart = (found.to(at::kDouble) - exact).abs().max().item<double>();
  EXPECT_LE(apart, units * epsilon(expected.scalar_type()) * std::max(1.0, largest));
}

class Composite : public testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(Types, Composite, testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& type) { return c10::toString(type.param); });

at::ScalarType wide(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

TEST_P(Composite, RmsNorm) {
  const at::Tensor x = values({131, 37}, "x", GetParam()), dy = values({131, 37}, "dy", GetParam());
  const at::Tensor weight = values({37}, "w", wide(GetParam()));
  const auto [output, reciprocal] = cpu::rms_norm(x, weight, 1e-5);
  const auto [same, also] = composite::rms_norm(x, weight, 1e-5);
  expect_near(same, output);
  expect_near(also, reciprocal);
  const auto [dx, dweight] = cpu::rms_norm_backward(dy, x, weight, reciprocal);
  const auto [dx_too, dweight_too] = composite::rms_norm_backward(dy, x, weight, reciprocal);
  expect_near(dx_too, dx);
  expect_near(dweight_too, dweight);
}

TEST_P(Composite, LayerNorm) {
  const at::Tensor x = values({131, 37}, "x", GetParam()), dy = values({131, 37}, "dy", GetParam());
  const at::Tensor weight = values({37}, "w", wide(GetParam()));
  for (const std::optional<at::Tensor>& bias :
       {std::optional<at::Tensor>(), std::optional(values({37}, "b", weight.scalar_type()))}) {
    const auto [output, mean, reciprocal] = cpu::layer_norm(x, weight, bias, 1e-5);
    const auto [same, mean_too, also] = composite::layer_norm(x, weight, bias, 1e-5);
    expect_near(same, output);
    const auto [dx, dw, db] = cpu::layer_norm_backward(dy, x, weight, mean, reciprocal);
    const auto [dx_too, dw_too, db_too] =
        composite::layer_norm_backward(dy, x, weight, mean_too, also);
    expect_near(dx_too, dx, 64);
    expect_near(dw_too, dw, 64);
    expect_near(db_too, db, 64);
  }
}

// Over chunks of rows, a part of one, and a single channel; a mean that is large beside the
// deviation shows sums that cancel.
TEST_P(Composite, BatchNorm) {
  const at::ScalarType type = GetParam();
  for (const auto& [rows, channels] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{131, 37}, {2, 5}, {64, 1}}) {
    const at::Tensor x = values({rows, channels}, "x", type) + 3;
    const at::Tensor dy = values({rows, channels}, "dy", type);
    const at::Tensor added = values({rows, channels}, "added", type);
    const at::Tensor weight = values({channels}, "w", wide(type));
    const at::Tensor bias = values({channels}, "b", wide(type));
    for (const bool relu : {false, true}) {
      for (const auto& shortcut : {std::optional<at::Tensor>(), std::optional(added)}) {
        const auto [y, mean, variance] = cpu::batch_norm(x, shortcut, weight, bias, 1e-3, relu);
        const auto [same, mean_too, variance_too] =
            composite::batch_norm(x, shortcut, weight, bias, 1e-3, relu);
        expect_near(same, y);
        expect_near(mean_too, mean);
        expect_near(variance_too, variance);
        const auto own = cpu::batch_norm_backward(dy, y, x, weight, mean, variance, 1e-3, relu);
        const auto other =
            composite::batch_norm_backward(dy, y, x, weight, mean, variance, 1e-3, relu);
        expect_near(std::get<0>(other), std::get<0>(own), 64);
        EXPECT_TRUE(std::get<1>(other).equal(std::get<1>(own)));
        expect_near(std::get<2>(other), std::get<2>(own), 64);
        expect_near(std::get<3>(other), std::get<3>(own), 64);
      }
    }
  }
}

TEST_P(Composite, BatchNormHidesNoNaN) {
  const at::Tensor x = values({70, 3}, "x", GetParam());
  x[69][1] = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor weight = at::ones({3}, x.options().dtype(wide(GetParam())));
  const auto [y, mean, variance] =
      cpu::batch_norm(x, std::nullopt, weight, at::zeros_like(weight), 1e-5, true);
  EXPECT_TRUE(y.select(1, 1).isnan().all().item<bool>());
  EXPECT_FALSE(y.select(1, 0).isnan().any().item<bool>());
  const auto gradients =
      cpu::batch_norm_backward(at::ones_like(x), y, x, weight, mean, variance, 1e-5, true);
  EXPECT_TRUE(std::get<0>(gradients).select(1, 1).isnan().all().item<bool>());
}

TEST_P(Composite, SwiGlu) {
  const at::Tensor gate = values({13, 70}, "gate", GetParam()) * 4;
  const at::Tensor up = values({13, 70}, "up", GetParam()), dy = values({13, 70}, "dy", GetParam());
  expect_near(composite::swiglu(gate, up), cpu::swiglu(gate, up));
  const auto [of_gate, of_up] = cpu::swiglu_backward(dy, gate, up);
  const auto [of_gate_too, of_up_too] = composite::swiglu_backward(dy, gate, up);
  expect_near(of_gate_too, of_gate);
  expect_near(of_up_too, of_up);
}

TEST_P(Composite, Sums) {
  const at::Tensor x = values({13, 7}, "x", GetParam()), exact = x.to(at::kDouble);
  const at::Tensor squares = square_sums({x, x[0]});
  EXPECT_EQ(squares.scalar_type(), at::kDouble);
  EXPECT_NEAR(squares[0].item<double>() / exact.square().sum().item<double>(), 1, 1e-14);
  EXPECT_NEAR(squares[1].item<double>() / exact[0].square().sum().item<double>(), 1, 1e-14);
  expect_near(column_sums(x, wide(GetParam())), exact.sum(0).to(wide(GetParam())));
  EXPECT_EQ(square_sums({}).numel(), 0);
}

TEST_P(Composite, CrossEntropy) {
  const at::ScalarType type = GetParam();
  const at::Tensor logits = values({9, 11}, "logits", type) * 3;
  const at::Tensor targets = at::tensor({0, 10, -100, 3, 4, -100, 5, 6, 7}, at::kLong);
  const auto near = [&](const at::Tensor& found, const at::Tensor& expected) {
    EXPECT_NEAR(found.item<double>() / expected.item<double>(), 1, 16 * epsilon(type));
    EXPECT_EQ(found.scalar_type(), at::kDouble);
  };
  near(composite::cross_entropy(logits, targets), cpu::cross_entropy(logits, targets));
  const at::Tensor own = logits.clone(), same = logits.clone();
  const at::Tensor sum = cpu::cross_entropy_with_gradient_(own, targets, 0.5);
  near(composite::cross_entropy_with_gradient_(same, targets, 0.5), sum);
  expect_near(same, own);
}

TEST_P(Composite, SlicesOfTheVocabulary) {
  const at::ScalarType type = GetParam();
  const at::Tensor logits = values({9, 251}, "logits", type) * 10;
  const at::Tensor targets = at::tensor({0, 250, -100, 83, 84, -100, 167, 100, 7}, at::kLong);
  const std::vector<std::int64_t> borders = {0, 84, 84, 251};  // the second is empty
  std::vector<at::Tensor> own, same, statistics;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    const at::Tensor part = logits.narrow(1, borders[i], borders[i + 1] - borders[i]);
    own.push_back(part.clone());
    same.push_back(part.clone());
    statistics.push_back(cpu::cross_entropy_slice(own[i], targets, borders[i]));
    const at::Tensor too = composite::cross_entropy_slice(same[i], targets, borders[i]);
    if (own[i].size(1) == 0) {
      EXPECT_TRUE(too.equal(statistics[i]));
      continue;
    }
    EXPECT_LE((too - statistics[i]).abs().max().item<double>(), 64 * epsilon(wide(type)));
  }
  const at::Tensor slices = at::stack(statistics);
  EXPECT_NEAR(composite::cross_entropy_of_slices(slices, targets).item<double>() /
                  cpu::cross_entropy_of_slices(slices, targets).item<double>(),
              1, 1e-14);
  for (std::size_t i = 0; i < own.size(); ++i) {
    cpu::cross_entropy_gradient_of_slice_(own[i], targets, borders[i], slices, 0.5);
    composite::cross_entropy_gradient_of_slice_(same[i], targets, borders[i], slices, 0.5);
    expect_near(same[i], own[i]);
  }
}

// The shapes reach every way that a factor of few bits is multiplied. Of the composite, which
// rounds its product to them, the sum in fp32 has their error.
TEST_P(Composite, GradientOfAWeight) {
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
           {1, 1, 1}, {37, 70, 19}, {5, 1, 300}, {4096, 600, 3}, {0, 3, 4}}) {
    const std::int64_t k = shape[0], m = shape[1], n = shape[2];
    const at::Tensor left = values({k, m}, "left", GetParam());
    const at::Tensor right = values({k, n}, "right", GetParam());
    const at::Tensor exact = left.to(at::kDouble).t().mm(right.to(at::kDouble));
    const at::Tensor sum = at::full({m, n}, NAN, wide(GetParam())), same = sum.clone();
    const double units = 4 * std::sqrt(static_cast<double>(k + 1));
    cpu::add_product_(sum, left, right, /*overwrites=*/true);
    expect_near(sum, exact.to(sum.scalar_type()), units);
    composite::add_product_(same, left, right, /*overwrites=*/true);
    expect_near(same.to(GetParam()), exact.to(GetParam()), units);
    cpu::add_product_(sum, left, right, /*overwrites=*/false);
    expect_near(sum, (2 * exact).to(sum.scalar_type()), units);
    cpu::add_product_(sum, left.t().contiguous().t(), right.t().contiguous().t(), false);
    expect_near(sum, (3 * exact).to(sum.scalar_type()), units);
    const at::Tensor turned = at::full({n, m}, NAN, sum.options()).t();  // what MKL does not write
    cpu::add_product_(turned, left, right, /*overwrites=*/true);
    expect_near(turned, exact.to(sum.scalar_type()), units);
  }
}

TEST_P(Composite, DropoutHasTheSameBits) {
  const at::Tensor x = values({12, 9}, "x", GetParam());  // rows of 3 samples, cut anywhere
  const at::Tensor ids = at::tensor({5, 1 << 20, 7}, at::kLong);
  const auto key = static_cast<std::int64_t>(stream_key(1, "place"));
  for (const std::int64_t first : {0, 5, 9}) {
    const at::Tensor part = x.narrow(0, 0, 7);
    const at::Tensor own = cpu::dropout(part, ids, first, 36, 0.3, key);
    EXPECT_TRUE(composite::dropout(part, ids, first, 36, 0.3, key).equal(own));
    EXPECT_GT(own.eq(0).sum().item<std::int64_t>(), 0);
  }
}

TEST_P(Composite, RowsOfTables) {
  const at::Tensor table = values({7, 5}, "table", wide(GetParam()));
  const at::Tensor rows = values({9, 5}, "rows", GetParam());
  const at::Tensor indices = at::tensor({3, 0, 3, 3, 6, 1, 0, 3, 2}, at::kLong);
  const at::Tensor own = table.clone(), same = table.clone();
  cpu::add_rows_(own, indices, rows);
  composite::add_rows_(same, indices, rows);
  expect_near(same, own);
}

// As views of rows of tokens, as linear layers give them.
at::Tensor head_values(const std::vector<std::int64_t>& shape, std::string_view name,
                       at::ScalarType type) {
  return values({shape[0], shape[2], shape[1], shape[3]}, name, type).transpose(1, 2);
}

// One block of queries, a few with a part of one, and one query alone.
TEST_P(Composite, Attention) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{2, 3, 40, 8}, {1, 2, 301, 24}, {2, 1, 1, 5}}) {
    const at::Tensor q = head_values(shape, "q", GetParam()), k = values(shape, "k", GetParam());
    const at::Tensor v = head_values(shape, "v", GetParam()), d = values(shape, "d", GetParam());
    const std::int64_t length = shape[2], half = length / 2;
    at::Tensor mask = at::ones({shape[0], 1, length, length}, at::kBool).tril_();
    mask.narrow(2, half, length - half).narrow(3, 0, half).zero_();  // two documents
    mask = at::zeros(mask.sizes(), GetParam()).masked_fill_(mask.logical_not(), -INFINITY);
    for (const std::optional<at::Tensor>& masked :
         {std::optional<at::Tensor>(), std::optional<at::Tensor>(mask)}) {
      const auto [output, log_sum] = cpu::attention(q, k, v, masked);
      const auto [same, also] = composite::attention(q, k, v, masked);
      expect_near(same, output);
      expect_near(also.to(GetParam()), log_sum.to(GetParam()));  // of scores of that precision
      const auto [dq, dk, dv] = cpu::attention_backward(d, q, k, v, masked, output, log_sum);
      const auto [dq_too, dk_too, dv_too] =
          composite::attention_backward(d, q, k, v, masked, output, log_sum);
      expect_near(dq_too, dq, 64);
      expect_near(dk_too, dk, 64);
      expect_near(dv_too, dv, 64);
    }
  }
}

// As exact as LibTorch's own, whose sums are fp32 as well: each beside fp64 of the same values.
TEST(Attention, GradientsOfBf16AreAsExactAsLibTorchs) {
  const std::vector<std::int64_t> shape = {1, 4, 200, 32};
  const at::Tensor q = head_values(shape, "q", at::kBFloat16);
  const at::Tensor k = head_values(shape, "k", at::kBFloat16);
  const at::Tensor v = head_values(shape, "v", at::kBFloat16);
  const at::Tensor d = head_values(shape, "d", at::kBFloat16);
  const auto [output, log_sum] = cpu::attention(q, k, v, std::nullopt);
  const auto own = cpu::attention_backward(d, q, k, v, std::nullopt, output, log_sum);
  const auto theirs = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      d, q, k, v, output, log_sum, 0.0, /*is_causal=*/true);
  const at::Tensor wide_q = q.to(at::kDouble), wide_k = k.to(at::kDouble);
  const at::Tensor wide_v = v.to(at::kDouble);
  const auto [exact_output, exact_sum] = composite::attention(wide_q, wide_k, wide_v, std::nullopt);
  const auto exact = composite::attention_backward(d.to(at::kDouble), wide_q, wide_k, wide_v,
                                                   std::nullopt, exact_output, exact_sum);
  const auto error = [](const at::Tensor& found, const at::Tensor& expected) {
    return ((found.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  };
  const auto expect_as_exact = [&](const at::Tensor& one, const at::Tensor& other,
                                   const at::Tensor& expected) {
    EXPECT_LE(error(one, expected), 1.2 * error(other, expected));
  };
  expect_as_exact(std::get<0>(own), std::get<0>(theirs), std::get<0>(exact));
  expect_as_exact(std::get<1>(own), std::get<1>(theirs), std::get<1>(exact));
  expect_as_exact(std::get<2>(own), std::get<2>(theirs), std::get<2>(exact));
}

TEST_P(Composite, RotaryPositions) {
  const at::Tensor heads = values({6, 16}, "heads", GetParam());
  const at::Tensor angles = values({10, 4}, "angles", wide(GetParam()));
  const at::Tensor table = at::stack({angles.cos(), angles.sin()});
  const at::Tensor positions = at::tensor({0, 9, 3, 3, 1, 7}, at::kLong);
  for (const bool backward : {false, true}) {
    const at::Tensor own = heads.clone(), same = heads.clone();
    cpu::rotate_(own, positions, table, backward);
    composite::rotate_(same, positions, table, backward);
    expect_near(same, own);
  }
}

// Element by element, by the formula.
TEST_P(Composite, AdamW) {
  const at::ScalarType type = wide(GetParam());
  const at::Tensor w = values({50}, "w", type), g = values({50}, "g", type);
  const at::Tensor m = values({50}, "m", type), v = values({50}, "v", type).square();
  const at::Tensor expected_m = 0.9 * m + 0.1 * (0.5 * g);
  const at::Tensor expected_v = 0.99 * v + 0.01 * (0.5 * g).square();
  const at::Tensor expected_w = 0.9999 * w - 1e-3 * (0.3 * expected_m / (expected_v.sqrt() + 1e-8));
  const at::Tensor scale = at::scalar_tensor(0.5, at::kDouble);
  const AdamWConstants constants{0.9, 0.99, 0.3, 1e-8, 1e-3, 0.9999};
  adamw_(w, g, m, v, scale, at::scalar_tensor(true, at::kBool), constants);
  expect_near(m, expected_m);
  expect_near(v, expected_v);
  expect_near(w, expected_w);

  w[0] = -0.0;
  const std::vector<at::Tensor> before = {w.clone(), m.clone(), v.clone()};
  g.fill_(std::numeric_limits<double>::quiet_NaN());
  adamw_(w, g, m, v, scale, at::scalar_tensor(false, at::kBool), constants);
  EXPECT_TRUE(w.equal(before[0]) && m.equal(before[1]) && v.equal(before[2]));
  EXPECT_TRUE(w.signbit()[0].item<bool>());
}

}  // namespace
}  // namespace troika::ops
