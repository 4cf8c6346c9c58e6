#include <ATen/ATen.h>
#include <troika/checkpoint/tensor_diff.h>
#include <troika/param/shape_text.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace troika {
namespace {

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  // Where both are NaN, or the same infinity, they are the same.
  const at::Tensor same = (a == b) | (a.isnan() & b.isnan());
  const at::Tensor difference = (a - b).abs().masked_fill(same, 0);
  if (difference.isnan().any().item<bool>()) return std::numeric_limits<double>::infinity();
  return difference.max().item<double>();
}

bool is_integral(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

// Of whole numbers, which fp64 does not tell apart beyond 2^53. Of two that are not the same the
// larger one less the smaller one may be beyond int64, and never is 0 in fp64.
double largest_whole_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor exact = (at::maximum(a, b) - at::minimum(a, b)).to(at::kDouble);
  const at::Tensor wide = (a.to(at::kDouble) - b.to(at::kDouble)).abs();
  return at::where(exact >= 0, exact, wide).max().item<double>();
}

TensorDifference compare(const std::string& name, const at::Tensor& a, const at::Tensor& b) {
  TensorDifference result{.name = name};
  if (a.sizes() != b.sizes()) {
    result.unlike = shape_text(a.sizes()) + " and " + shape_text(b.sizes());
    return result;
  }
  if (a.numel() == 0) return result;
  const at::Tensor exact = a.to(at::kDouble);
  result.largest = is_integral(a) && is_integral(b)
                       ? largest_whole_difference(a.to(at::kLong), b.to(at::kLong))
                       : largest_difference(exact, b.to(at::kDouble));
  result.largest_value = exact.abs().max().item<double>();
  return result;
}

// Whether a tensor that `other` lacks counts. Running statistics of a model have other names in a
// checkpoint, where each data rank has its own.
bool is_missing(const TensorEntry& entry, const TensorSource& other, DiffScope scope) {
  return scope == DiffScope::kAll || other.find("replica.0." + entry.name) == nullptr;
}

}  // namespace

TensorOwner owner_of(std::string_view name) {
  if (name.starts_with("optimizer.")) return TensorOwner::kOptimizer;
  return name.starts_with("replica.") ? TensorOwner::kDataRank : TensorOwner::kModel;
}

TensorDiff compare_tensors(TensorSource& a, TensorSource& b, DiffScope scope) {
  const auto counts = [&](const TensorEntry& entry) {
    return scope == DiffScope::kAll || owner_of(entry.name) == TensorOwner::kModel;
  };
  TensorDiff diff;
  for (const TensorEntry& entry : a.entries()) {
    if (!counts(entry)) continue;
    const TensorEntry* other = b.find(entry.name);
    if (other == nullptr) {
      if (is_missing(entry, b, scope)) diff.only_in_a.push_back(entry.name);
      continue;
    }
    TensorDifference each = compare(entry.name, a.load(entry), b.load(*other));
    if (each.unlike.empty() && each.largest == 0) {
      ++diff.same;
    } else {
      diff.differing.push_back(std::move(each));
    }
  }
  for (const TensorEntry& entry : b.entries()) {
    if (!counts(entry) || a.find(entry.name) != nullptr) continue;
    if (is_missing(entry, a, scope)) diff.only_in_b.push_back(entry.name);
  }
  std::ranges::stable_sort(diff.differing, [](const auto& one, const auto& other) {
    return std::tuple(one.unlike.empty(), -one.largest) <
           std::tuple(other.unlike.empty(), -other.largest);
  });
  return diff;
}

}  // namespace troika
