// Transfers under way between simulated processes, under a virtual clock. Each process has a link,
// and transfers in the same direction share it: one gets the smaller of its part of its sender's
// link and its part of its receiver's. Parts are equal, or as uneven as those of real connections.
#pragma once

#include <troika/base/random.h>
#include <troika/simulate/link.h>

#include <cstdint>
#include <map>
#include <vector>

namespace troika {

class Network {
 public:
  // Each transfer draws a weight, exp(unevenness z) with z normal, and its part of a link is in
  // proportion to that. 0: equal parts.
  Network(int processes, const Link& link, double unevenness = 0, std::uint64_t seed = 0);

  // Starts a transfer at the clock's time and returns its number, from 0.
  std::int64_t send(int from, int to, double bytes);
  // Returns when the next transfer has left its sender, if nothing else starts; infinity where none
  // is under way. The latency comes on top, and is the caller's to add.
  [[nodiscard]] double next() const;
  // Moves the clock forward, at most to next(), and returns the transfers that are through, by
  // number.
  [[nodiscard]] std::vector<std::int64_t> advance(double to);

 private:
  struct Flow {
    int from = 0, to = 0;
    double left = 0;  // bytes
    double weight = 1;
  };
  [[nodiscard]] double rate(const Flow& flow) const;

  Link link_;
  double now_ = 0;
  double unevenness_;
  RandomStream random_;
  std::vector<double> leaving_, arriving_;  // weights of transfers, by process
  std::map<std::int64_t, Flow> flows_;
  std::int64_t count_ = 0;
};

}  // namespace troika
