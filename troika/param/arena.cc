#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/param/arena.h>

#include <algorithm>
#include <numeric>

namespace troika {
namespace {

// 64 bytes hold 16 fp32, and so 32 of the 16-bit types: rounding to 32 elements aligns every
// storage.
constexpr std::int64_t kSlotElements = 32;

std::int64_t aligned(std::int64_t count) {
  return (count + kSlotElements - 1) / kSlotElements * kSlotElements;
}

at::Tensor allocate(const Group& group, std::int64_t count, at::ScalarType type) {
  const auto bytes = static_cast<std::size_t>(count) * c10::elementSize(type);
  return group.allocate(bytes).view(type);
}

}  // namespace

Arena::Arena(std::span<const ParameterSpec> specs, NumericTypes types, const Group& group)
    : types_(types), group_(group) {
  std::vector<const ParameterSpec*> own;
  for (const ParameterSpec& spec : specs) {
    if (spec.tied_to.empty()) own.push_back(&spec);
  }
  std::ranges::stable_sort(own, {}, &ParameterSpec::unit);

  std::int64_t offset = 0;
  for (const ParameterSpec* spec : own) {
    while (std::ssize(unit_begin_) <= spec->unit) unit_begin_.push_back(offset);
    slots_.push_back({offset, spec->local_count()});
    offset += aligned(spec->local_count());
  }
  unit_begin_.push_back(offset);

  masters_ = allocate(group, offset, types.master);
  gradients_ = allocate(group, offset, types.master);
  if (types.compute != types.master) values_ = allocate(group, offset, types.compute);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto view = [&](const at::Tensor& storage) {
      return storage.narrow(0, slots_[i].offset, slots_[i].count).view(own[i]->local_shape());
    };
    const at::Tensor master = view(masters_);
    parameters_.push_back(std::make_unique<Parameter>(
        *own[i], master, values_.defined() ? view(values_) : master, view(gradients_)));
    by_name_.emplace_back(own[i]->name, parameters_.back().get());
  }
  std::ranges::sort(by_name_);
  name_tied(specs);
}

void Arena::name_tied(std::span<const ParameterSpec> specs) {
  std::vector<std::pair<std::string, Parameter*>> tied;  // by_name_ stays sorted while it is read
  for (const ParameterSpec& spec : specs) {
    if (spec.tied_to.empty()) continue;
    Parameter& target = parameter(spec.tied_to);
    check(target.spec().local_shape() == spec.local_shape(),
          "'" + spec.name + "' is tied to a parameter of another shape, '" + spec.tied_to + "'");
    tied.emplace_back(spec.name, &target);
  }
  by_name_.insert(by_name_.end(), tied.begin(), tied.end());
  std::ranges::sort(by_name_);
  const auto twice =
      std::ranges::adjacent_find(by_name_, {}, [](const auto& e) { return e.first; });
  if (twice != by_name_.end()) check(false, "two parameters are called '" + twice->first + "'");
}

Parameter& Arena::parameter(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      by_name_, name, {}, [](const auto& e) -> std::string_view { return e.first; });
  if (found == by_name_.end() || found->first != name) {
    throw InternalError("internal error: no parameter '" + std::string(name) + "' in the arena");
  }
  return *found->second;
}

at::Tensor Arena::flat(const at::Tensor& storage, int first_unit, int last_unit) const {
  const std::int64_t begin = unit_begin_[static_cast<std::size_t>(first_unit)];
  return storage.narrow(0, begin, unit_begin_[static_cast<std::size_t>(last_unit)] - begin);
}

at::Tensor Arena::gradients(int first_unit, int last_unit) const {
  return flat(gradients_, first_unit, last_unit);
}

at::Tensor Arena::masters(int first_unit, int last_unit) const {
  return flat(masters_, first_unit, last_unit);
}

at::Tensor Arena::allocate_like_masters() const {
  return allocate(group_, masters_.numel(), types_.master);
}

at::Tensor Arena::view_of(const Parameter& parameter, const at::Tensor& storage) const {
  const auto found =
      std::ranges::find(parameters_, &parameter, [](const auto& owned) { return owned.get(); });
  check(found != parameters_.end(), "the parameter is not of this arena");
  const Slot& slot = slots_[static_cast<std::size_t>(found - parameters_.begin())];
  return storage.narrow(0, slot.offset, slot.count).view(parameter.spec().local_shape());
}

std::int64_t Arena::parameter_count() const {
  return std::accumulate(slots_.begin(), slots_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Slot& slot) { return sum + slot.count; });
}

void Arena::initialize(std::uint64_t seed) {
  for (const auto& parameter : parameters_) {
    parameter->master().copy_(initial_values(parameter->spec(), seed));
  }
  publish();
}

void Arena::publish() {
  if (values_.defined()) values_.copy_(masters_);
}

void Arena::release_gradients() {
  for (const auto& parameter : parameters_) parameter->release_gradient();
}

}  // namespace troika
