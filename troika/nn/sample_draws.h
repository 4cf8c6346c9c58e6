// What a module may draw its masks by, so that they do not depend on which rank or microbatch a
// sample is in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace troika {

struct SampleDraws {
  at::Tensor sample_ids;   // int64 [samples], as of Microbatch
  std::uint64_t seed = 0;  // of the unit
  std::int64_t step = 0;
};

// Returns the draws of the training pass that this thread is in; nothing outside of one.
[[nodiscard]] std::optional<SampleDraws> current_sample_draws();

// Makes `draws` those of this thread while it lives.
class SampleDrawsScope {
 public:
  explicit SampleDrawsScope(std::optional<SampleDraws> draws);
  ~SampleDrawsScope();
  SampleDrawsScope(const SampleDrawsScope&) = delete;
  SampleDrawsScope& operator=(const SampleDrawsScope&) = delete;

 private:
  std::optional<SampleDraws> before_;
};

}  // namespace troika
