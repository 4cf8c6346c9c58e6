#include <troika/parallel/data_parallel/step_facts.h>

namespace troika::detail {
namespace {

template <class T>
void store(void* to, const StepFacts& facts) {
  auto* values = static_cast<T*>(to);
  values[0] = static_cast<T>(facts.weight);
  values[1] = static_cast<T>(facts.present);
  values[2] = static_cast<T>(facts.checksum);
  values[3] = static_cast<T>(facts.checksum_squared);
  values[4] = static_cast<T>(facts.alarm);
}

template <class T>
StepFacts load(const void* from) {
  const auto* values = static_cast<const T*>(from);
  return {.weight = values[0],
          .present = values[1],
          .checksum = values[2],
          .checksum_squared = values[3],
          .alarm = values[4]};
}

}  // namespace

bool any_present(const StepFacts& facts, int ranks) {
  return facts.present > 0.5 / ranks;
}

bool have_diverged(const StepFacts& facts, int ranks) {
  // Of one rank whose checksum is another by one, among n: (n - 1) / n^2.
  const double spread = facts.checksum_squared - facts.checksum * facts.checksum;
  const bool all_present = facts.present > 1 - 0.5 / ranks;
  const bool apart = all_present && spread > 0.25 / ranks;
  return facts.alarm > 0 || apart;
}

void FactsMemory::write(const StepFacts& facts) const {
  dtype_ == at::kFloat ? store<float>(data_, facts) : store<double>(data_, facts);
}

StepFacts FactsMemory::read() const {
  return dtype_ == at::kFloat ? load<float>(data_) : load<double>(data_);
}

}  // namespace troika::detail
