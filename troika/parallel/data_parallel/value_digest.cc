#include <troika/base/hash.h>
#include <troika/parallel/data_parallel/value_digest.h>

#include <troika/nn/module_tensors.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

namespace troika::detail {
namespace {

// Read in less than a microsecond: fewer need not be cut.
constexpr std::size_t kLeastBytes = 1024;

// Bytes [begin, end) of the tensor's rows, however it lies in memory.
void add_bytes(ContentHash& hash, const at::Tensor& tensor, std::size_t begin, std::size_t end) {
  if (tensor.is_contiguous()) [[likely]] {
    hash.update(bytes_of(tensor).subspan(begin, end - begin));
    return;
  }
  const std::size_t outer = tensor.nbytes() / static_cast<std::size_t>(tensor.size(0));
  const std::size_t first = begin / outer, last = (end + outer - 1) / outer;
  const at::Tensor rows =
      tensor.detach()
          .narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(last - first))
          .contiguous();
  hash.update(bytes_of(rows).subspan(begin - first * outer, end - begin));
}

}  // namespace

ValueDigest::ValueDigest(std::span<const NamedTensor> tensors) {
  std::size_t total = 0;
  for (const NamedTensor& each : tensors) {
    const std::size_t bytes = each.tensor.nbytes();
    if (bytes > 0) ranges_.push_back({total, total + bytes, each.tensor});
    total += bytes;
  }
  segments_ = std::clamp<std::size_t>(total / kLeastBytes, 1, kPasses);
  segment_bytes_ = (total + segments_ - 1) / segments_;
}

std::uint64_t ValueDigest::of_segment(std::uint64_t pass) const {
  const std::size_t begin = pass % segments_ * segment_bytes_, end = begin + segment_bytes_;
  ContentHash hash;
  for (auto range = std::ranges::upper_bound(ranges_, begin, {}, &TensorRange::end);
       range != ranges_.end() && range->begin < end; ++range) {
    const at::Tensor& tensor = range->tensor;
    if (!tensor.is_cpu() || tensor.nbytes() != range->end - range->begin) {
      hash.update(c10::toString(tensor.scalar_type())).update(std::to_string(tensor.nbytes()));
      continue;
    }
    const std::size_t low = std::max(begin, range->begin) - range->begin;
    add_bytes(hash, tensor, low, std::min(end, range->end) - range->begin);
  }
  return hash.digest();
}

}  // namespace troika::detail
