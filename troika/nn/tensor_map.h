// A few tensors with names, in an order that is fixed when the model is built: what a sample
// consists of, and what flows between units.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/named_tensor.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

using Tensors = std::vector<at::Tensor>;

class TensorMap {
 public:
  TensorMap() = default;
  TensorMap(std::initializer_list<NamedTensor> tensors);

  // Appends a tensor. Throws UsageError where the name is taken.
  void add(std::string name, at::Tensor tensor);
  // Replaces the tensor of this name, or appends it.
  void set(std::string_view name, at::Tensor tensor);
  // Returns the tensor of this name. Throws UsageError naming those present.
  [[nodiscard]] const at::Tensor& at(std::string_view name) const;
  // Returns the tensor of this name, or null if there is none.
  [[nodiscard]] const at::Tensor* find(std::string_view name) const;

  // Returns the tensor at `position`, which must exist.
  [[nodiscard]] const at::Tensor& operator[](std::size_t position) const {
    return tensors_[position].tensor;
  }
  [[nodiscard]] at::Tensor& operator[](std::size_t position) { return tensors_[position].tensor; }
  // Returns the tensor at `position`, or an undefined one if there are not so many.
  [[nodiscard]] at::Tensor value_or_none(std::size_t position) const {
    return position < tensors_.size() ? tensors_[position].tensor : at::Tensor();
  }

  [[nodiscard]] std::size_t size() const { return tensors_.size(); }
  [[nodiscard]] bool empty() const { return tensors_.empty(); }
  [[nodiscard]] auto begin() const { return tensors_.begin(); }
  [[nodiscard]] auto end() const { return tensors_.end(); }
  [[nodiscard]] auto begin() { return tensors_.begin(); }
  [[nodiscard]] auto end() { return tensors_.end(); }

 private:
  std::vector<NamedTensor> tensors_;
};

}  // namespace troika
