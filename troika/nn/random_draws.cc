#include <ATen/ATen.h>
#include <troika/nn/random_draws.h>

#include <mutex>

namespace troika::detail {
namespace {

// Of the host, and of the device where that is another.
std::vector<at::Generator> default_generators(at::Device device) {
  std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
  if (!device.is_cpu()) generators.push_back(at::globalContext().defaultGenerator(device));
  return generators;
}

}  // namespace

std::vector<at::Tensor> generator_states(at::Device device) {
  std::vector<at::Tensor> states;
  std::vector<at::Generator> generators = default_generators(device);
  for (at::Generator& generator : generators) {
    const std::scoped_lock lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void set_generator_states(at::Device device, const std::vector<at::Tensor>& states) {
  std::vector<at::Generator> generators = default_generators(device);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::scoped_lock lock(generators[i].mutex());
    generators[i].set_state(states[i]);
  }
}

void seed_generators(at::Device device, std::uint64_t seed) {
  std::vector<at::Generator> generators = default_generators(device);
  for (at::Generator& generator : generators) {
    const std::scoped_lock lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

}  // namespace troika::detail
