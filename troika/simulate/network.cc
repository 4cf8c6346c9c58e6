#include <troika/simulate/network.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troika {
namespace {

// Of what is left of a transfer, which rounding leaves.
constexpr double kNothing = 1e-3;  // bytes

}  // namespace

Network::Network(int processes, const Link& link, double unevenness, std::uint64_t seed)
    : link_(link),
      unevenness_(unevenness),
      random_(stream_key(seed, "transfers")),
      leaving_(static_cast<std::size_t>(processes)),
      arriving_(static_cast<std::size_t>(processes)) {}

std::int64_t Network::send(int from, int to, double bytes) {
  const double weight = std::exp(unevenness_ * random_.normal(static_cast<std::uint64_t>(count_)));
  leaving_[static_cast<std::size_t>(from)] += weight;
  arriving_[static_cast<std::size_t>(to)] += weight;
  flows_[count_] = {from, to, std::isinf(link_.bytes_per_second) ? 0 : bytes, weight};
  return count_++;
}

double Network::rate(const Flow& flow) const {
  const double sharing = std::max({flow.weight, leaving_[static_cast<std::size_t>(flow.from)],
                                   arriving_[static_cast<std::size_t>(flow.to)]});
  return link_.bytes_per_second * flow.weight / sharing;
}

double Network::next() const {
  double soonest = std::numeric_limits<double>::infinity();
  for (const auto& [number, flow] : flows_) {
    const double left = flow.left <= kNothing ? 0 : flow.left / rate(flow);
    soonest = std::min(soonest, now_ + left);
  }
  return soonest;
}

std::vector<std::int64_t> Network::advance(double to) {
  const bool is_due = to >= next();
  const double seconds = to - now_;
  double least = std::numeric_limits<double>::infinity();
  for (auto& [number, flow] : flows_) {
    if (flow.left > 0) flow.left -= std::min(flow.left, seconds * rate(flow));
    least = std::min(least, flow.left);
  }
  now_ = to;
  std::vector<std::int64_t> through;
  for (auto flow = flows_.begin(); is_due && flow != flows_.end();) {
    if (flow->second.left > std::max(kNothing, least)) {
      ++flow;
      continue;
    }
    leaving_[static_cast<std::size_t>(flow->second.from)] -= flow->second.weight;
    arriving_[static_cast<std::size_t>(flow->second.to)] -= flow->second.weight;
    through.push_back(flow->first);
    flow = flows_.erase(flow);
  }
  return through;
}

}  // namespace troika
