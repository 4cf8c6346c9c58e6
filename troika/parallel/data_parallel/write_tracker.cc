#include <troika/base/error.h>
#include <troika/parallel/data_parallel/write_tracker.h>

#include <ATen/ATen.h>

#include <utility>

namespace troika::detail {

WriteTracker::WriteTracker(std::span<GradientSlot> slots,
                           std::function<void(GradientSlot&)> on_move)
    : slots_(slots), on_move_(std::move(on_move)), moves_(slots.size()) {
  for (const GradientSlot& slot : slots_) data_.push_back(slot.parameter.const_data_ptr());
  reset();
}

void WriteTracker::find_moves() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const at::Tensor& parameter = slots_[i].parameter;
    if (parameter.const_data_ptr() == data_[i]) [[likely]]
      continue;
    if (parameter.scalar_type() != slots_[i].dtype || parameter.device() != slots_[i].device ||
        parameter.sizes() != at::IntArrayRef(slots_[i].sizes)) {
      throw UsageError(title_of(slots_[i]) +
                           " has changed its dtype, device or shape since DataParallel "
                           "was made",
                       "call to() before DataParallel, and the optimiser, are made");
    }
    if (on_move_) on_move_(slots_[i]);
    data_[i] = parameter.const_data_ptr();
    ++moves_[i];
    moved_ = true;
  }
}

void WriteTracker::reset() {
  if (on_move_) find_moves();
  base_sum_ = sum_of_versions();
  base_versions_ = versions();
  moved_ = false;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    data_[i] = slots_[i].parameter.const_data_ptr();
    moves_[i] = 0;
  }
}

std::uint64_t WriteTracker::sum_of_versions() const {
  std::uint64_t sum = 0;
  for (const GradientSlot& slot : slots_) sum += slot.parameter._version();
  return sum;
}

std::vector<std::uint32_t> WriteTracker::writes() const {
  std::vector<std::uint32_t> writes = versions();
  for (std::size_t i = 0; i < slots_.size(); ++i) writes[i] += moves_[i] - base_versions_[i];
  return writes;
}

std::vector<std::uint32_t> WriteTracker::versions() const {
  std::vector<std::uint32_t> versions;
  versions.reserve(slots_.size());
  for (const GradientSlot& slot : slots_) {
    versions.push_back(static_cast<std::uint32_t>(slot.parameter._version()));
  }
  return versions;
}

void WriteTracker::throw_if_written(std::span<const std::uint32_t> versions) const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (static_cast<std::uint32_t>(slots_[i].parameter._version()) == versions[i]) continue;
    throw UsageError(title_of(slots_[i]) + " was written to between forward and backward",
                     "write to parameters after backward(), or run forward() again");
  }
}

}  // namespace troika::detail
