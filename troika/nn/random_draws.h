// The state of torch's random generators, from which modules draw. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troika::detail {

// Return and set the states of the generators of the host, and of `device` where that is another.
[[nodiscard]] std::vector<at::Tensor> generator_states(at::Device device);
void set_generator_states(at::Device device, const std::vector<at::Tensor>& states);
// Seeds them.
void seed_generators(at::Device device, std::uint64_t seed);

// Draws as at an earlier time while this lives.
class EarlierDraws {
 public:
  EarlierDraws(at::Device device, const std::vector<at::Tensor>& states)
      : device_(device), before_(generator_states(device)) {
    set_generator_states(device, states);
  }
  ~EarlierDraws() { set_generator_states(device_, before_); }
  EarlierDraws(const EarlierDraws&) = delete;
  EarlierDraws& operator=(const EarlierDraws&) = delete;

 private:
  at::Device device_;
  std::vector<at::Tensor> before_;
};

}  // namespace troika::detail
