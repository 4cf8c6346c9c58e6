// Replicas that train on their own for some steps, and then meet: local SGD (Stich 2019),
// post-local SGD (Lin et al. 2020), and DiLoCo (Douillard et al. 2023), whose outer optimiser takes
// the mean of what the islands have changed for its gradient. With fragments it is Streaming DiLoCo
// (Douillard et al. 2025): a part of the parameters at a time, on its way during the next step.
#pragma once

#include <troika/sync/compression_state.h>
#include <troika/sync/loose_sync.h>
#include <troika/sync/outer_step.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace troika {

enum class Outer { kAverage, kNesterov };
template <>
std::span<const std::string_view> names_of<Outer>();

struct LocalOptions {
  std::int64_t every_steps = 50;
  Outer outer = Outer::kAverage;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  std::int64_t fragments = 1;
  std::int64_t start_after = 0;
  std::int64_t island = 0;

  bool operator==(const LocalOptions&) const = default;
};

// Returns the step that islands take together.
[[nodiscard]] OuterStep outer_step_of(const LocalOptions& options);

// Exchanges what islands have changed. With x the anchor (the parameters that all islands had after
// their last exchange), p_i an island's own, w_i the weight of the targets that it has trained on
// since, W their sum:
//
//   g = sum_i w_i (x - p_i) / W
//   average:   x -= g                              (the weighted mean of the p_i)
//   nesterov:  m = momentum m + g;  x -= lr (g + momentum m)
//
// and p_i = x. With fragments an exchange is on its way while the next step is taken, and then
// p_i += x - (p_i as it was sent). All meet at the end of a round, too.
class LocalSync final : public LooseSync {
 public:
  LocalSync(Arena& arena, LocalOptions options, SyncGroups groups);

  [[nodiscard]] Updater finish() override;
  void end_step(bool applied) override;
  void refresh() override;
  void save(StateDict& state) const override;
  void add_places(StateDict& state, const HasTensor& has) const override;
  void load(const StateDict& state) override;
  // With fragments, parameters are never all exchanged at once.
  [[nodiscard]] bool are_replicas_equal() const override;

 private:
  // An exchange of a range of the flat masters.
  struct Exchange {
    std::int64_t fragment = 0;
    IndexRange range = {};
    std::vector<BucketPart> parts = {};  // of the own part, with compression
    at::Tensor sent;                     // [range.count]: the masters as they were
    at::Tensor change;  // [own part + 1]: weighted changes and the weight, being summed
    Work work = {};
    Work weight = {};  // with compression, which leaves it out of the rest
  };

  [[nodiscard]] bool is_together() const override { return step() < options_.start_after; }
  [[nodiscard]] bool all_meet() const override {
    return step_in_round() == 0 || LooseSync::all_meet();
  }
  bool exchange() override;
  // Returns the place of the step under way.
  [[nodiscard]] std::int64_t step_in_round() const;
  [[nodiscard]] std::optional<std::int64_t> fragment_due() const;
  void sum_gradients() const;
  [[nodiscard]] IndexRange range_of(std::int64_t fragment) const;
  [[nodiscard]] Exchange begin_exchange(std::int64_t fragment) const;
  void finish_exchange();
  // Describes the change of an exchange to compression.
  [[nodiscard]] GradientBucket bucket_of(const Exchange& exchange) const;
  // Calls `visit(fragment, own, memory)` for what compression keeps of each fragment.
  template <class Visit>
  void for_each_memory(const Visit& visit) const;
  // Returns what compression keeps, with errors in errors_.
  [[nodiscard]] std::vector<CompressedPart> compressed_parts() const;
  void save_compression(StateDict& state) const;
  void load_compression(const StateDict& state) const;
  // Collective: returns the mean change over the islands, [range.count].
  [[nodiscard]] at::Tensor mean_of(const Exchange& exchange) const;
  void take_anchor();
  void add_tensors(StateDict& state, std::string_view prefix, const at::Tensor& flat) const;

  LocalOptions options_;
  at::Tensor anchor_, momentum_;          // [masters().size()]
  at::Tensor errors_;                     // likewise, of compression, to be saved or loaded
  bool has_anchor_ = false;               // one that is not just what the masters are
  std::optional<Exchange> exchange_;      // on its way
  std::optional<std::int64_t> fragment_;  // that it is of, also before it is begun again
};

}  // namespace troika
