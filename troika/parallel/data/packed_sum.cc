#include <ATen/ATen.h>
#include <troika/parallel/data/packed_sum.h>

namespace troika {

PackedSum::PackedSum(Group group, std::vector<const Parameter*> parameters, Slices slices)
    : group_(std::move(group)), parameters_(std::move(parameters)), slices_(slices) {}

bool PackedSum::overlaps(const Parameter& parameter) const {
  return slices_ == Slices::kOverlapping && parameter.spec().slice.has_value();
}

std::int64_t PackedSum::elements_of(const Parameter& parameter) const {
  return overlaps(parameter) ? parameter.spec().global_count() : parameter.spec().local_count();
}

std::int64_t PackedSum::bytes() const {
  return buffer_.defined() ? static_cast<std::int64_t>(buffer_.nbytes()) : 0;
}

at::Tensor PackedSum::place_of(const Parameter& parameter, const at::Tensor& part) const {
  const ParameterSpec& spec = parameter.spec();
  if (!overlaps(parameter)) return part.view(spec.local_shape());
  const Slice& slice = *spec.slice;
  return part.view(spec.shape).narrow(slice.dim, slice.begin, slice.end - slice.begin);
}

void PackedSum::run(std::string_view label, Seconds timeout) {
  if (group_.size() == 1 || parameters_.empty()) return;
  if (!buffer_.defined()) {
    std::int64_t elements = 0;
    for (const Parameter* parameter : parameters_) elements += elements_of(*parameter);
    const at::ScalarType type = parameters_.front()->master_type();
    buffer_ =
        group_.allocate(static_cast<std::size_t>(elements) * c10::elementSize(type)).view(type);
  }
  const auto for_each_place = [&](const auto& visit) {
    std::int64_t begin = 0;
    for (const Parameter* parameter : parameters_) {
      const at::Tensor part = buffer_.narrow(0, begin, elements_of(*parameter));
      begin += part.numel();
      visit(*parameter, part);
    }
  };
  for_each_place([&](const Parameter& parameter, const at::Tensor& part) {
    if (overlaps(parameter)) part.zero_();
    place_of(parameter, part).copy_(parameter.gradient());
  });
  group_.all_reduce(buffer_, ReduceOp::kSum, {label, Deadline::in(timeout)}).wait();
  for_each_place([&](const Parameter& parameter, const at::Tensor& part) {
    parameter.gradient().copy_(place_of(parameter, part));
  });
}

}  // namespace troika
