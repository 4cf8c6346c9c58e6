#include <troika/nn/sample_draws.h>

#include <utility>

namespace troika {
namespace {

thread_local std::optional<SampleDraws> t_draws;

}  // namespace

std::optional<SampleDraws> current_sample_draws() {
  return t_draws;
}

SampleDrawsScope::SampleDrawsScope(std::optional<SampleDraws> draws)
    : before_(std::exchange(t_draws, std::move(draws))) {}

SampleDrawsScope::~SampleDrawsScope() {
  t_draws = std::move(before_);
}

}  // namespace troika
