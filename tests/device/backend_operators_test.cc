// Operators on tensors, on the test device against the CPU.
#include "device/operator_check.h"

namespace troika::test {
namespace {

class DeviceOperators : public TestDeviceFixture,
                        public testing::WithParamInterface<OperatorCase> {};

TEST_P(DeviceOperators, ComputeWhatTheCpuDoes) {
  expect_what_the_cpu_computes(GetParam());
}

const OperatorCase kTensors[] = {
    {"views",
     [] {
       return Tensors{normal({4, 6})};
     },
     [](const Tensors& in) {
       const auto parts = in[0].view({2, 2, 6}).transpose(0, 2).chunk(2);
       return at::cat(
           {parts[0].reshape({-1}), parts[1].unfold(2, 2, 1).flatten(), in[0].diagonal(1)});
     }},
    {"in_place",
     [] {
       return Tensors{normal({4, 6})};
     },
     [](const Tensors& in) {
       at::Tensor own = in[0].clone();
       own.select(0, 1).mul_(3);
       own.t().add_(1).clamp_min_(0.5);
       own.slice(1, 2, 4).copy_(in[0].slice(1, 0, 2));
       return own;
     }},
    {"index_add",
     [] {
       return Tensors{normal({4, 3}), normal({5, 3}), below(4, {5})};
     },
     [](const Tensors& in) { return in[0].index_add(0, in[2], in[1], 2); }},
    {"index_select_gather_scatter",
     [] {
       return Tensors{normal({4, 3}), below(4, {5}), below(4, {4, 3})};
     },
     [](const Tensors& in) {
       return at::cat({in[0].index_select(0, in[1]), in[0].gather(0, in[2]),
                       in[0].scatter_add(0, in[2], in[0])});
     }},
    {"index",
     [] {
       return Tensors{normal({4, 3}), below(4, {5})};
     },
     [](const Tensors& in) { return in[0].index({in[1]}) * 2; }},
    {"index_put",
     [] {
       return Tensors{normal({4, 3}), normal({5, 3}), below(4, {5})};
     },
     [](const Tensors& in) { return in[0].index_put({in[2]}, in[1], /*accumulate=*/true); }},
    {"masked",
     [] {
       return Tensors{normal({4, 3})};
     },
     [](const Tensors& in) {
       return in[0].masked_select(in[0] > 0).sum() + in[0].masked_fill(in[0] < 0, 2);
     }},
    {"where",
     [] {
       return Tensors{normal({7}), normal({7})};
     },
     [](const Tensors& in) { return at::where(in[0] > in[1], in[0], 2 * in[1]); }},
    {"topk",
     [] {
       return Tensors{normal({4, 6})};
     },
     [](const Tensors& in) { return std::get<0>(in[0].topk(2)); }},
    {"sort",
     [] {
       return Tensors{normal({4, 6})};
     },
     [](const Tensors& in) { return std::get<0>(in[0].sort(0, true)); }},
    {"cumsum",
     [] {
       return Tensors{normal({4, 6})};
     },
     [](const Tensors& in) { return in[0].cumsum(1) + in[0].cumprod(0); }},
    {"reductions",
     [] {
       return Tensors{normal({4, 6})};
     },
     [](const Tensors& in) {
       return in[0].sum(0) + in[0].mean(0) + in[0].amax(0) + in[0].var(0) + in[0].logsumexp(0) +
              in[0].norm() + in[0].prod() + std::get<0>(in[0].max(0));
     }},
    {"matrix_products",
     [] {
       return Tensors{normal({2, 3, 4}), normal({2, 4, 5}), normal({4}), normal({3, 5})};
     },
     [](const Tensors& in) {
       return at::baddbmm(in[3], in[0], in[1]) + at::matmul(in[0], in[2]).unsqueeze(2) +
              at::einsum("bij,bjk->ik", {in[0], in[1]});
     }},
    {"pointwise",
     [] {
       return Tensors{normal({7}), normal({7})};
     },
     [](const Tensors& in) {
       return at::addcmul(in[0], in[0], in[1], 2) + at::addcdiv(in[0], in[1], in[0].exp()) +
              in[0].lerp(in[1], 0.3) + in[0].abs().pow(1.5) + in[0].square().rsqrt() +
              in[1].clamp(-1, 1) + at::hypot(in[0], in[1]) + in[0].log1p().nan_to_num();
     }},
    {"stack_split",
     [] {
       return Tensors{normal({4, 6}), normal({4, 6})};
     },
     [](const Tensors& in) {
       const auto rows = at::stack({in[0], in[1]}, 1).unbind(0);
       const auto parts = in[0].split_with_sizes({1, 5}, 1);
       return rows[1].flatten().sum() + parts[1] + in[1].roll(1, 0).slice(1, 1) +
              in[0].flip(1).tril().slice(1, 1);
     }},
    {"integers",
     [] {
       return Tensors{below(9, {20}), below(3, {20})};
     },
     [](const Tensors& in) {
       return at::cat({in[0] % 4, at::bincount(in[0]), at::one_hot(in[1], 3).flatten(),
                       in[0].argsort(), std::get<0>(at::_unique2(in[0])),
                       (in[0] > 4).nonzero().flatten()});
     }},
    {"isfinite", [] { return Tensors{normal({7})}; },
     [](const Tensors& in) { return at::isfinite(in[0].log()).logical_or(in[0].isnan()).all(); }},
    {"factories",
     [] {
       return Tensors{normal({3, 3})};
     },
     [](const Tensors& in) {
       const auto options = in[0].options().requires_grad(false);
       return in[0] + at::arange(3, options) + at::eye(3, options) + at::full({3}, 2, options) +
              at::ones_like(in[0]) + at::linspace(0, 1, 3, options) +
              at::scalar_tensor(4, options) + at::tril(at::ones({3, 3}, options));
     }},
    {"random",
     [] {
       return Tensors{normal({3, 3})};
     },
     [](const Tensors& in) {
       const auto options = in[0].options().requires_grad(false);
       return in[0] + at::randn({3, 3}, options) + at::rand({3, 3}, options) +
              at::randperm(3, options) + at::bernoulli(at::full({3}, 0.5, options)) +
              at::empty({3}, options).uniform_(-1, 1) +
              at::multinomial(at::ones({3}, options), 3, true);
     }},
    {"complex", [] { return Tensors{normal({8})}; },
     [](const Tensors& in) { return at::fft_irfft(at::fft_rfft(in[0]).conj() * 2); }},
    {"linear_algebra",
     [] {
       return Tensors{normal({3, 3}), normal({3, 2})};
     },
     [](const Tensors& in) {
       return at::linalg_solve(in[0], in[1]) + at::linalg_vector_norm(in[0]);
     }},
    {"foreach",
     [] {
       return Tensors{normal({3}), normal({2, 2})};
     },
     [](const Tensors& in) {
       at::NoGradGuard guard;
       const Tensors own{in[0].clone(), in[1].clone()};
       at::_foreach_mul_(own, 3);
       at::_foreach_add_(own, in, 2);
       at::_foreach_addcdiv_(own, in, at::_foreach_exp(in), 0.5);
       return at::stack(at::_foreach_norm(own));
     }},
};

INSTANTIATE_TEST_SUITE_P(Tensors, DeviceOperators, testing::ValuesIn(kTensors), case_name);

}  // namespace
}  // namespace troika::test
