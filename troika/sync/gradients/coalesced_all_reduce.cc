#include <ATen/ATen.h>
#include <troika/sync/gradients/coalesced_all_reduce.h>

namespace troika {

CoalescedAllReduce::CoalescedAllReduce(Group group, std::vector<const Parameter*> parameters,
                                       Slices slices)
    : group_(std::move(group)), parameters_(std::move(parameters)), slices_(slices) {}

bool CoalescedAllReduce::overlaps(const Parameter& parameter) const {
  return slices_ == Slices::kOverlapping && parameter.spec().slice.has_value();
}

std::int64_t CoalescedAllReduce::elements_of(const Parameter& parameter) const {
  return overlaps(parameter) ? parameter.spec().global_count() : parameter.spec().local_count();
}

std::int64_t CoalescedAllReduce::bytes() const {
  return buffer_.defined() ? static_cast<std::int64_t>(buffer_.nbytes()) : 0;
}

at::Tensor CoalescedAllReduce::slice_view(const Parameter& parameter,
                                          const at::Tensor& slice_buffer) const {
  const ParameterSpec& spec = parameter.spec();
  if (!overlaps(parameter)) return slice_buffer.view(spec.local_shape());
  const Slice& slice = *spec.slice;
  return slice_buffer.view(spec.shape).narrow(slice.dim, slice.begin, slice.end - slice.begin);
}

void CoalescedAllReduce::run(std::string_view label, Seconds timeout) {
  if (group_.size() == 1 || parameters_.empty()) return;
  if (!buffer_.defined()) {
    std::int64_t elements = 0;
    for (const Parameter* parameter : parameters_) elements += elements_of(*parameter);
    const at::ScalarType type = parameters_.front()->master_type();
    buffer_ = group_
                  .allocate(static_cast<std::size_t>(elements) * c10::elementSize(type),
                            parameters_.front()->gradient().device())
                  .view(type);
  }
  const auto for_each_slice = [&](const auto& visit) {
    std::int64_t begin = 0;
    for (const Parameter* parameter : parameters_) {
      const at::Tensor slice_buffer = buffer_.narrow(0, begin, elements_of(*parameter));
      begin += slice_buffer.numel();
      visit(*parameter, slice_buffer);
    }
  };
  for_each_slice([&](const Parameter& parameter, const at::Tensor& slice_buffer) {
    if (overlaps(parameter)) slice_buffer.zero_();
    slice_view(parameter, slice_buffer).copy_(parameter.gradient());
  });
  group_.all_reduce(buffer_, ReduceOp::kSum, {label, Deadline::in(timeout)}).wait();
  for_each_slice([&](const Parameter& parameter, const at::Tensor& slice_buffer) {
    parameter.gradient().copy_(slice_view(parameter, slice_buffer));
  });
}

}  // namespace troika
