#include <ATen/ATen.h>
#include <troika/param/flat_copies.h>

#include <algorithm>
#include <cstdint>

namespace troika {

FlatCopies::FlatCopies(std::span<const at::Tensor> tensors) : copies_(tensors.size()) {
  std::vector<at::ScalarType> types;
  for (const at::Tensor& each : tensors) {
    if (std::ranges::count(types, each.scalar_type()) == 0) types.push_back(each.scalar_type());
  }
  for (const at::ScalarType type : types) {
    std::vector<std::size_t> members;
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].scalar_type() != type) continue;
      members.push_back(i);
      elements += tensors[i].numel();
    }
    const at::Tensor flat =
        at::empty({elements}, tensors[members.front()].options().requires_grad(false));
    std::int64_t begin = 0;
    for (const std::size_t i : members) {
      copies_[i] = flat.narrow(0, begin, tensors[i].numel()).view(tensors[i].sizes());
      copies_[i].copy_(tensors[i].detach());
      begin += tensors[i].numel();
    }
    if (elements > 0) flats_.push_back(flat);
  }
}

void FlatCopies::write_to(std::span<const at::Tensor> tensors) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].detach().copy_(copies_[i]);
}

}  // namespace troika
