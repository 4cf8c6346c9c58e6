// The arena: all parameters of a rank in three contiguous storages (masters, gradients, and the
// low-precision working copy where there is one), cut into units, cut into slots aligned to 64
// bytes. Buckets, fused optimiser steps, clipping, dumps and files are slices of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>
#include <troika/param/parameter.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace troika {

// The types of one run: what is computed in, and what masters, gradients and optimiser state are
// kept in.
struct NumericTypes {
  at::ScalarType compute;
  at::ScalarType master;
  friend bool operator==(const NumericTypes&, const NumericTypes&) = default;
};

class Arena {
 public:
  // Lays out `specs` by unit (ascending), inside a unit in the order given. A spec with `tied_to`
  // gets the parameter it names, which must be among `specs` and have its shape. Storage comes from
  // `group.allocate`. Values are not initialised: call initialize() or load. Throws InternalError
  // on a duplicate name.
  Arena(std::span<const ParameterSpec> specs, NumericTypes types, const Group& group);

  [[nodiscard]] NumericTypes types() const { return types_; }
  // In storage order, tied ones left out.
  [[nodiscard]] std::span<const std::unique_ptr<Parameter>> parameters() const {
    return parameters_;
  }
  // By global name; a tied name gives the parameter that it is tied to. Throws InternalError.
  [[nodiscard]] Parameter& parameter(std::string_view name) const;
  [[nodiscard]] int units() const { return static_cast<int>(unit_begin_.size()) - 1; }
  // Flat views over units [first, last), padding included (padding is always zero).
  [[nodiscard]] at::Tensor gradients(int first_unit, int last_unit) const;
  [[nodiscard]] at::Tensor masters(int first_unit, int last_unit) const;
  // Storage of one more value per element, shaped like the masters and zeroed: optimiser state.
  [[nodiscard]] at::Tensor allocate_like_masters() const;
  // The view of `parameter` in a tensor made by allocate_like_masters().
  [[nodiscard]] at::Tensor view_of(const Parameter& parameter, const at::Tensor& storage) const;
  // Elements, padding left out.
  [[nodiscard]] std::int64_t parameter_count() const;

  // Draws all masters as their specs say, from (seed, global name, global index), and publishes
  // them.
  void initialize(std::uint64_t seed);
  // Copies masters to the low-precision values; nothing to do where they are the same memory.
  void publish();
  // A new step: every gradient slot is unclaimed.
  void release_gradients();

 private:
  struct Slot {
    std::int64_t offset;
    std::int64_t count;
  };
  // Adds the names of tied parameters to by_name_.
  void name_tied(std::span<const ParameterSpec> specs);
  [[nodiscard]] at::Tensor flat(const at::Tensor& storage, int first_unit, int last_unit) const;

  NumericTypes types_;
  at::Tensor masters_;
  at::Tensor values_;  // undefined where the masters serve
  at::Tensor gradients_;
  Group group_;
  std::vector<std::int64_t> unit_begin_;  // units() + 1 offsets, in elements
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<Slot> slots_;                                  // by parameter
  std::vector<std::pair<std::string, Parameter*>> by_name_;  // sorted
};

// Values of the part of `spec` that is held here, drawn in double precision.
[[nodiscard]] at::Tensor initial_values(const ParameterSpec& spec, std::uint64_t seed);

}  // namespace troika
