// Copies of several tensors end to end, so that one collective serves them all: over a slow link a
// collective takes as long as its messages are on their way, however short they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace troika {

class FlatCopies {
 public:
  // Copies tensors of any types, each on the same device.
  explicit FlatCopies(std::span<const at::Tensor> tensors);

  // Returns the copies end to end: one contiguous tensor [elements] for each type, in the order of
  // the first tensor of the type. Types without an element have none.
  [[nodiscard]] std::span<const at::Tensor> flats() const { return flats_; }
  // Returns the copies, with the shapes of the tensors and in their order. They are views of
  // flats(), whose memory lives as long as one of them.
  [[nodiscard]] std::span<const at::Tensor> copies() const { return copies_; }
  // Copies the elements back. `tensors` are those of the constructor.
  void write_to(std::span<const at::Tensor> tensors) const;

 private:
  std::vector<at::Tensor> flats_, copies_;
};

}  // namespace troika
