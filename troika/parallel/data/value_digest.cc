#include <troika/base/hash.h>
#include <troika/parallel/data/value_digest.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace troika::detail {
namespace {

// Read in less than a microsecond: fewer need not be cut.
constexpr std::size_t kLeastBytes = 1024;

std::span<const std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

}  // namespace

ValueDigest::ValueDigest(std::span<const NamedTensor> tensors) {
  std::size_t total = 0;
  for (const NamedTensor& each : tensors) {
    const std::size_t bytes = each.tensor.nbytes();
    if (bytes > 0) places_.push_back({total, total + bytes, each.tensor});
    total += bytes;
  }
  parts_ = std::clamp<std::size_t>(total / kLeastBytes, 1, kPasses);
  part_bytes_ = (total + parts_ - 1) / parts_;
}

std::uint64_t ValueDigest::of_part(std::uint64_t pass) const {
  const std::size_t begin = pass % parts_ * part_bytes_, end = begin + part_bytes_;
  ContentHash hash;
  for (auto place = std::ranges::upper_bound(places_, begin, {}, &Place::end);
       place != places_.end() && place->begin < end; ++place) {
    const at::Tensor& tensor = place->tensor;
    if (tensor.is_contiguous() && tensor.nbytes() == place->end - place->begin) [[likely]] {
      const std::size_t low = std::max(begin, place->begin), high = std::min(end, place->end);
      hash.update(bytes_of(tensor).subspan(low - place->begin, high - low));
    } else if (place->begin >= begin) {
      // Whole: its elements may come in another order on other ranks, or be of another size.
      hash.update(bytes_of(tensor.detach().contiguous()));
    }
  }
  return hash.digest();
}

}  // namespace troika::detail
