#include <troika/exported/operators.h>

#include <cstddef>
#include <map>
#include <set>

namespace troika {
namespace {

// Not among them is what reads or writes files, changes the memory of a tensor,
// or asks for a device, a thread or a generator.
constexpr std::string_view kAllowed =
    "__and__ __lshift__ __or__ __rshift__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool3d "
    "_conj _fft_c2c _fft_c2r _fft_r2c _fused_rms_norm _local_scalar_dense _log_softmax "
    "_pdist_forward _safe_softmax _softmax _to_copy _trilinear _unsafe_index _unsafe_view "
    "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm _weight_norm_interface "
    "abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d add addbmm addcdiv addcmul "
    "addmm addmv addr adjoint affine_grid_generator all alpha_dropout amax amin aminmax angle "
    "any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort "
    "as_strided asin asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d "
    "avg_pool2d avg_pool3d baddbmm bartlett_window batch_norm bernoulli bilinear "
    "binary_cross_entropy binary_cross_entropy_with_logits bincount bitwise_and "
    "bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman_window "
    "block_diag bmm broadcast_tensors broadcast_to bucketize cartesian_prod cat cdist ceil celu "
    "chain_matmul channel_shuffle chunk clamp clamp_max clamp_min clip clone col2im "
    "column_stack combinations complex concat concatenate conj conj_physical constant_pad_nd "
    "contiguous conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d "
    "conv_transpose3d convolution copy copy_ copysign cos cosh cosine_embedding_loss "
    "cosine_similarity cross cross_entropy_loss ctc_loss cummax cummin cumprod cumsum "
    "cumulative_trapezoid deg2rad det detach diag diag_embed diagflat diagonal diagonal_scatter "
    "diff digamma dist div divide dot dropout dsplit dstack einsum elu embedding embedding_bag "
    "empty empty_like empty_permuted eq erf erfc erfinv exp exp2 expand expand_as expm1 "
    "exponential eye feature_alpha_dropout feature_dropout fft_fft fft_fft2 fft_fftfreq "
    "fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft "
    "fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn fill "
    "fill_diagonal_ fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin "
    "fmod frac frexp frobenius_norm full full_like gather ge gelu glu greater greater_equal "
    "grid_sampler grid_sampler_2d grid_sampler_3d group_norm gru gru_cell gt hamming_window "
    "hann_window hardshrink hardsigmoid hardswish hardtanh heaviside hinge_embedding_loss histc "
    "hsplit hstack huber_loss hypot i0 im2col imag index index_add index_copy index_fill "
    "index_put index_reduce index_select inner instance_norm inverse is_floating_point isclose "
    "isfinite isin isinf isnan isneginf isposinf istft item kaiser_window kl_div kron kthvalue "
    "l1_loss layer_norm ldexp le leaky_relu lerp less less_equal lgamma lift_fresh_copy "
    "linalg_cholesky linalg_cond linalg_cross linalg_det linalg_diagonal linalg_eigh "
    "linalg_eigvals linalg_eigvalsh linalg_inv linalg_lu_factor linalg_matmul linalg_matrix_exp "
    "linalg_matrix_norm linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet "
    "linalg_solve linalg_solve_triangular linalg_svd linalg_svdvals linalg_vecdot "
    "linalg_vector_norm linear linspace log log10 log1p log2 log_sigmoid log_sigmoid_forward "
    "log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or "
    "logical_xor logit logspace logsumexp lstm lstm_cell lt mH mT margin_ranking_loss "
    "masked_fill masked_scatter masked_select matmul matrix_H matrix_exp matrix_power max "
    "max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d "
    "max_pool3d_with_indices max_unpool2d max_unpool3d maximum mean median meshgrid min minimum "
    "mish mm mode moveaxis movedim mse_loss msort mul multi_margin_loss multilabel_margin_loss "
    "multinomial multiply mv nan_to_num nanmean nansum narrow native_dropout native_group_norm "
    "native_layer_norm ne neg negative new_empty new_full new_ones new_zeros nll_loss "
    "nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd nonzero norm normal not_equal "
    "nuclear_norm numpy_T one_hot ones ones_like outer pad pairwise_distance pdist permute "
    "pixel_shuffle pixel_unshuffle poisson_nll_loss polar polygamma positive pow prelu prod "
    "rad2deg rand rand_like randint randint_like randn randn_like randperm ravel real "
    "reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu relu6 remainder renorm "
    "repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape "
    "reshape_as resolve_conj resolve_neg rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell "
    "roll rot90 round row_stack rrelu rsqrt rsub scalar_tensor scaled_dot_product_attention "
    "scatter scatter_add scatter_reduce searchsorted select select_scatter selu sgn sigmoid "
    "sign signbit silu sin sinc sinh size slice slice_scatter slogdet smooth_l1_loss "
    "soft_margin_loss softmax softplus softshrink sort special_bessel_j0 special_entr "
    "special_erf special_erfc special_erfcx special_exp2 special_expit special_expm1 "
    "special_gammainc special_gammaln special_i0 special_i0e special_i1 special_log1p "
    "special_log_ndtr special_log_softmax special_logit special_logsumexp special_multigammaln "
    "special_ndtr special_softmax special_xlog1py special_xlogy special_zeta split "
    "split_with_sizes sqrt square squeeze stack std std_mean stft sub subtract sum sum_to_size "
    "svd swapaxes swapdims sym_numel sym_size sym_storage_offset sym_stride t take "
    "take_along_dim tan tanh tensor_split tensordot threshold tile to topk trace transpose "
    "trapezoid tril tril_indices triplet_margin_loss triu triu_indices true_divide trunc "
    "type_as unbind unflatten unfold uniform unsafe_chunk unsafe_split unsafe_split_with_sizes "
    "unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d upsample_trilinear3d vander var var_mean vdot view "
    "view_as view_as_complex view_as_real vsplit vstack where xlogy zero zeros zeros_like ";

const std::set<std::string_view>& allowed() {
  static const std::set<std::string_view> kNames = [] {
    std::set<std::string_view> names;
    for (std::size_t first = 0, end; first < kAllowed.size(); first = end + 1) {
      end = kAllowed.find(' ', first);
      names.insert(kAllowed.substr(first, end - first));
    }
    return names;
  }();
  return kNames;
}

}  // namespace

bool is_allowed_operator(std::string_view name) {
  if (allowed().contains(name)) return true;
  return name.ends_with('_') && !name.ends_with("__") &&
         allowed().contains(name.substr(0, name.size() - 1));
}

bool is_assertion(std::string_view name) {
  return name.starts_with("_assert_") || name.starts_with("sym_constrain_range") ||
         name.starts_with("_functional_assert") || name.starts_with("_functional_sym_constrain");
}

std::optional<NumberOperator> number_operator(std::string_view target) {
  using N = NumberOperator;
  static const std::map<std::string_view, NumberOperator> kOperators = {
      {"_operator.add", N::kAdd},        {"_operator.sub", N::kSubtract},
      {"_operator.mul", N::kMultiply},   {"_operator.floordiv", N::kFloorDivide},
      {"_operator.truediv", N::kDivide}, {"_operator.mod", N::kModulo},
      {"_operator.neg", N::kNegate},     {"_operator.pow", N::kPower},
      {"_operator.eq", N::kEqual},       {"_operator.ne", N::kNotEqual},
      {"_operator.lt", N::kLess},        {"_operator.le", N::kLessEqual},
      {"_operator.gt", N::kGreater},     {"_operator.ge", N::kGreaterEqual},
      {"_operator.and_", N::kAnd},       {"_operator.or_", N::kOr},
      {"torch.sym_max", N::kMax},        {"torch.sym_min", N::kMin},
      {"torch.sym_not", N::kNot},        {"torch.sym_float", N::kToDouble},
      {"math.trunc", N::kTruncate},      {"torch.sym_int", N::kTruncate},
  };
  const auto found = kOperators.find(target);
  return found == kOperators.end() ? std::nullopt : std::optional(found->second);
}

bool switches_training(std::string_view argument) {
  return argument == "train" || argument == "training";
}

}  // namespace troika
