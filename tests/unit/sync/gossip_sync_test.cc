// Islands that mix their parameters with one or two others, against the matrices of the topologies.
#include <gmock/gmock.h>
#include <troika/sync/gossip_sync.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "unit/sync/loose_support.h"

namespace troika::test {
namespace {

constexpr std::int64_t kGossipSteps = 7;

// The islands whose values an island takes the mean of, itself first.
std::vector<std::size_t> heard_by(Topology topology, int island, int islands, std::int64_t step) {
  const auto other = [&](int distance) {
    return static_cast<std::size_t>(((island + distance) % islands + islands) % islands);
  };
  std::vector<std::size_t> heard = {static_cast<std::size_t>(island)};
  if (topology == Topology::kRing) {
    heard.push_back(other(1));
    if (islands > 2) heard.push_back(other(-1));
  } else if (topology == Topology::kExponential) {
    std::vector<int> distances;
    for (int distance = 1; distance < islands; distance *= 2) distances.push_back(distance);
    heard.push_back(other(-distances[static_cast<std::size_t>(step) % distances.size()]));
  } else {
    for (int distance = 1; distance < islands; ++distance) heard.push_back(other(distance));
  }
  return heard;
}

std::vector<at::Tensor> mixed(const std::vector<at::Tensor>& values, Topology topology,
                              std::int64_t step) {
  std::vector<at::Tensor> means;
  for (std::size_t i = 0; i < values.size(); ++i) {
    at::Tensor sum = at::zeros_like(values[i]);
    const auto heard =
        heard_by(topology, static_cast<int>(i), static_cast<int>(values.size()), step);
    for (const std::size_t each : heard) sum = sum + values[each];
    means.push_back(sum / static_cast<double>(heard.size()));
  }
  return means;
}

void expect_mixed(Topology topology, bool overlap, int islands) {
  const auto found =
      train_islands(islands, kGossipSteps, [&](Arena& arena, const SyncGroups& groups) {
        return std::make_unique<GossipSync>(arena, GossipOptions{topology, overlap, 1}, groups);
      });
  std::vector<at::Tensor> values(static_cast<std::size_t>(islands), first_values());
  std::vector<at::Tensor> sent;
  for (std::int64_t step = 0; step < kGossipSteps; ++step) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = values[i] + update_of(static_cast<int>(i), step);
    }
    if (!overlap) values = mixed(values, topology, step);
    if (overlap && !sent.empty()) {
      const std::vector<at::Tensor> means = mixed(sent, topology, step - 1);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = values[i] + means[i] - sent[i];
    }
    sent = values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_LT(distance(found[static_cast<std::size_t>(step)][i], values[i]), kBound)
          << "step " << step << ", island " << i << " of " << islands;
    }
  }
}

TEST(GossipSync, MixesAsTheTopologySays) {
  for (const Topology topology : {Topology::kRing, Topology::kExponential, Topology::kComplete}) {
    for (const int islands : {2, 3, 5}) {
      expect_mixed(topology, false, islands);
      expect_mixed(topology, true, islands);
    }
  }
}

TEST(GossipSync, KeepsTheMeanOfAll) {
  const auto found = train_islands(4, kGossipSteps, [&](Arena& arena, const SyncGroups& groups) {
    return std::make_unique<GossipSync>(arena, GossipOptions{Topology::kExponential, true, 1},
                                        groups);
  });
  at::Tensor mean = first_values();
  for (std::int64_t step = 0; step < kGossipSteps; ++step) {
    for (int island = 0; island < 4; ++island) mean = mean + update_of(island, step) / 4;
    EXPECT_LT(distance(at::stack(found[static_cast<std::size_t>(step)]).mean(0), mean), kBound);
  }
}

// Signals and wishes are heard when all meet, by all in the same step; until then valid targets of
// the others are taken to be as many as an island's own, and then put right.
TEST(LooseSync, TellsWhatLiesOutsideOfTrainingWhenAllMeet) {
  constexpr int kIslands = 3;
  constexpr std::int64_t kMeeting = LooseSync::kMeetingSteps;
  std::mutex mutex;
  std::vector<std::vector<StepSums>> told(kIslands);
  const auto valid_of = [](int island, std::int64_t step) { return 10 * island + step; };
  static_cast<void>(train_islands(
      kIslands, 2 * kMeeting,
      [](Arena& arena, const SyncGroups& groups) {
        return std::make_unique<GossipSync>(arena, GossipOptions{Topology::kRing, true, 1}, groups);
      },
      [&](int island, std::int64_t step) {
        StepPart part = part_of_weight(island, step);
        part.valid = valid_of(island, step);
        if (island == 1 && step == 3) part.stop_signal = 15;
        part.wants_checkpoint = island == 2 && step == 4;
        return part;
      },
      [&](int island, std::int64_t, const StepSums& sums) {
        const std::lock_guard lock(mutex);
        told[static_cast<std::size_t>(island)].push_back(sums);
      }));
  for (int island = 0; island < kIslands; ++island) {
    std::int64_t before = 0, all = 0;
    for (std::int64_t step = 0; step < 2 * kMeeting; ++step) {
      const StepSums& sums = told[static_cast<std::size_t>(island)][static_cast<std::size_t>(step)];
      EXPECT_EQ(sums.stop_signal, step == kMeeting - 1 ? 15 : 0) << step;
      EXPECT_EQ(sums.wants_checkpoint, step == kMeeting - 1) << step;
      EXPECT_EQ(sums.weight, weight_of(island, step)) << "of its own island";
      const bool meets = (step + 1) % kMeeting == 0;
      const std::int64_t guess = kIslands * valid_of(island, step);
      EXPECT_EQ(sums.valid, meets ? guess + all - before : guess) << step;
      before += sums.valid;
      for (int each = 0; each < kIslands; ++each) all += valid_of(each, step);
    }
  }
}

}  // namespace
}  // namespace troika::test
