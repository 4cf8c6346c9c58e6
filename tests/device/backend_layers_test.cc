// Layers, activations and losses of LibTorch on the test device against the CPU.
#include "device/operator_check.h"

namespace troika::test {
namespace {

namespace functional = torch::nn::functional;

class DeviceLayers : public TestDeviceFixture, public testing::WithParamInterface<OperatorCase> {};

TEST_P(DeviceLayers, ComputeWhatTheCpuDoes) {
  expect_what_the_cpu_computes(GetParam());
}

const OperatorCase kLayers[] = {
    {"linear",
     [] {
       return Tensors{normal({2, 5, 4}), normal({3, 4}), normal({3})};
     },
     [](const Tensors& in) { return functional::linear(in[0], in[1], in[2]); }},
    {"convolution",
     [] {
       return Tensors{normal({2, 4, 7, 6}), normal({6, 2, 3, 3}), normal({6})};
     },
     [](const Tensors& in) {
       return at::conv2d(in[0], in[1], in[2], {2, 1}, {1, 0}, {1, 1}, 2);
     }},
    {"convolution_without_bias",
     [] {
       return Tensors{normal({2, 3, 9}), normal({4, 3, 3})};
     },
     [](const Tensors& in) { return at::conv1d(in[0], in[1]); }},
    {"transposed_convolution",
     [] {
       return Tensors{normal({2, 3, 4, 4}), normal({3, 2, 3, 3}), normal({2})};
     },
     [](const Tensors& in) { return at::conv_transpose2d(in[0], in[1], in[2], 2); }},
    {"batch_norm",
     [] {
       return Tensors{normal({4, 3, 5}), normal({3}), normal({3})};
     },
     [](const Tensors& in) {
       return at::batch_norm(in[0], in[1], in[2], {}, {}, true, 0.1, 1e-5, false);
     }},
    {"layer_norm",
     [] {
       return Tensors{normal({4, 3, 5}), normal({5}), normal({5})};
     },
     [](const Tensors& in) { return at::layer_norm(in[0], {5}, in[1], in[2]); }},
    {"group_norm",
     [] {
       return Tensors{normal({4, 6, 5}), normal({6}), normal({6})};
     },
     [](const Tensors& in) { return at::group_norm(in[0], 3, in[1], in[2]); }},
    {"attention",
     [] {
       return Tensors{normal({2, 2, 5, 4}), normal({2, 2, 5, 4}), normal({2, 2, 5, 4})};
     },
     [](const Tensors& in) {
       return at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.0, true);
     }},
    {"attention_with_mask",
     [] {
       return Tensors{normal({2, 2, 5, 4}), normal({2, 2, 6, 4}), normal({2, 2, 6, 4}),
                      torch::ones({5, 6}).tril(1).to(at::kBool)};
     },
     [](const Tensors& in) {
       return at::scaled_dot_product_attention(in[0], in[1], in[2], in[3]);
     }},
    {"attention_with_dropout",
     [] {
       return Tensors{normal({2, 2, 5, 4}), normal({2, 2, 5, 4}), normal({2, 2, 5, 4})};
     },
     [](const Tensors& in) {
       return at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.5);
     }},
    {"embedding",
     [] {
       return Tensors{normal({7, 3}), below(7, {2, 5})};
     },
     [](const Tensors& in) {
       return functional::embedding(in[1], in[0],
                                    functional::EmbeddingFuncOptions().padding_idx(2));
     }},
    {"embedding_bag",
     [] {
       return Tensors{normal({7, 3}), below(7, {2, 5})};
     },
     [](const Tensors& in) { return functional::embedding_bag(in[1], in[0]); }},
    {"dropout", [] { return Tensors{normal({50})}; },
     [](const Tensors& in) {
       return functional::dropout(in[0], functional::DropoutFuncOptions().p(0.3));
     }},
    {"max_pool",
     [] {
       return Tensors{normal({2, 3, 6, 6})};
     },
     [](const Tensors& in) { return at::max_pool2d(in[0], 3, 2, 1); }},
    {"average_pool",
     [] {
       return Tensors{normal({2, 3, 6, 6})};
     },
     [](const Tensors& in) { return at::avg_pool2d(in[0], 2); }},
    {"adaptive_pool",
     [] {
       return Tensors{normal({2, 3, 6, 6})};
     },
     [](const Tensors& in) {
       return at::adaptive_avg_pool2d(in[0], {1, 1});
     }},
    {"lstm_cell",
     [] {
       return Tensors{normal({2, 3}), normal({2, 4}), normal({16, 3}), normal({16, 4})};
     },
     [](const Tensors& in) {
       return std::get<0>(at::lstm_cell(in[0], {in[1], in[1]}, in[2], in[3]));
     }},
    {"interpolate",
     [] {
       return Tensors{normal({1, 2, 3, 3})};
     },
     [](const Tensors& in) {
       return at::upsample_bilinear2d(in[0], {5, 5}, false);
     }},
    {"pad",
     [] {
       return Tensors{normal({2, 3, 4})};
     },
     [](const Tensors& in) {
       return at::pad(in[0], {1, 2}, "reflect");
     }},
};

const OperatorCase kActivations[] = {
    {"relu", [] { return Tensors{normal({9})}; },
     [](const Tensors& in) { return at::relu(in[0]); }},
    {"gelu", [] { return Tensors{normal({9})}; },
     [](const Tensors& in) { return at::gelu(in[0], "tanh"); }},
    {"silu", [] { return Tensors{normal({9})}; },
     [](const Tensors& in) { return at::silu(in[0]); }},
    {"glu",
     [] {
       return Tensors{normal({3, 8})};
     },
     [](const Tensors& in) { return at::glu(in[0]); }},
    {"softmax",
     [] {
       return Tensors{normal({3, 5})};
     },
     [](const Tensors& in) { return in[0].softmax(-1); }},
    {"log_softmax",
     [] {
       return Tensors{normal({3, 5})};
     },
     [](const Tensors& in) { return in[0].log_softmax(0); }},
    {"leaky_relu", [] { return Tensors{normal({9})}; },
     [](const Tensors& in) { return at::leaky_relu(in[0], 0.2); }},
    {"sigmoid_tanh", [] { return Tensors{normal({9})}; },
     [](const Tensors& in) { return in[0].sigmoid() * in[0].tanh(); }},
    {"softplus", [] { return Tensors{normal({9})}; },
     [](const Tensors& in) { return at::softplus(in[0]); }},
    {"elu", [] { return Tensors{normal({9})}; }, [](const Tensors& in) { return at::elu(in[0]); }},
};

at::Tensor cross_entropy(const Tensors& in, const functional::CrossEntropyFuncOptions& options) {
  return functional::cross_entropy(in[0], in[1], options);
}

const OperatorCase kLosses[] = {
    {"cross_entropy",
     [] {
       return Tensors{normal({6, 5}), below(5, {6})};
     },
     [](const Tensors& in) { return functional::cross_entropy(in[0], in[1]); }},
    {"cross_entropy_sum_ignored",
     [] {
       return Tensors{normal({6, 5}), below(5, {6})};
     },
     [](const Tensors& in) {
       return cross_entropy(
           in, functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(2));
     }},
    {"cross_entropy_smoothed",
     [] {
       return Tensors{normal({6, 5}), below(5, {6})};
     },
     [](const Tensors& in) {
       return cross_entropy(
           in, functional::CrossEntropyFuncOptions().reduction(torch::kNone).label_smoothing(0.1));
     }},
    {"cross_entropy_weighted",
     [] {
       return Tensors{normal({6, 5}), below(5, {6}), normal({5})};
     },
     [](const Tensors& in) {
       return cross_entropy(in,
                            functional::CrossEntropyFuncOptions().weight(in[2].detach().abs())) +
              in[2].sum();
     }},
    {"cross_entropy_of_probabilities",
     [] {
       return Tensors{normal({6, 5}), normal({6, 5}).softmax(1)};
     },
     [](const Tensors& in) { return functional::cross_entropy(in[0], in[1]); }},
    {"cross_entropy_of_pixels",
     [] {
       return Tensors{normal({2, 5, 3, 3}), below(5, {2, 3, 3})};
     },
     [](const Tensors& in) { return functional::cross_entropy(in[0], in[1]); }},
    {"mse",
     [] {
       return Tensors{normal({6}), normal({6})};
     },
     [](const Tensors& in) { return functional::mse_loss(in[0], in[1]); }},
    {"smooth_l1",
     [] {
       return Tensors{normal({6}), normal({6})};
     },
     [](const Tensors& in) { return functional::smooth_l1_loss(in[0], in[1]); }},
    {"binary_cross_entropy_with_logits",
     [] {
       return Tensors{normal({6}), normal({6}).sigmoid()};
     },
     [](const Tensors& in) { return functional::binary_cross_entropy_with_logits(in[0], in[1]); }},
    {"kl_div",
     [] {
       return Tensors{normal({6, 3}).log_softmax(1), normal({6, 3}).softmax(1)};
     },
     [](const Tensors& in) {
       return functional::kl_div(in[0], in[1],
                                 functional::KLDivFuncOptions().reduction(torch::kBatchMean));
     }},
};

INSTANTIATE_TEST_SUITE_P(Layers, DeviceLayers, testing::ValuesIn(kLayers), case_name);
INSTANTIATE_TEST_SUITE_P(Activations, DeviceLayers, testing::ValuesIn(kActivations), case_name);
INSTANTIATE_TEST_SUITE_P(Losses, DeviceLayers, testing::ValuesIn(kLosses), case_name);

}  // namespace
}  // namespace troika::test
