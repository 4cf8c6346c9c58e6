// The engine fake: one process that stands for a member of a group of any size, for dry runs.
// Operations are done at once, and nothing is sent. What a peer would have given is what this
// member has itself, or zero where that is too short:
//   all_reduce, broadcast  leave the tensor; reduce_scatter keeps this member's part of the input
//   all_gather, gather     every part is this member's input
//   all_to_all             every part is the part of the input that is meant for that peer
//   scatter                this member's part, on the root; zero elsewhere
//   exchange               zero is received
// Tensors may be on any device, the meta device among them.
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/comm/kinds.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <optional>

namespace troika {
namespace {

// As much of `from` as there is room for, and zeros after it.
void fill_from(const at::Tensor& to, const at::Tensor& from) {
  const std::int64_t n = std::min(to.numel(), from.numel());
  // The same memory, where input and output share it.
  if (to.is_meta() || to.const_data_ptr() != from.const_data_ptr()) {
    to.narrow(0, 0, n).copy_(from.narrow(0, 0, n));
  }
  to.narrow(0, n, to.numel() - n).zero_();
}

class FakeEngine final : public GroupEngine {
 public:
  FakeEngine(int rank, int size) : rank_(rank), size_(size) {}

  [[nodiscard]] std::string_view name() const override { return "fake"; }
  [[nodiscard]] bool accepts(at::DeviceType) const override { return true; }

  Work all_reduce(const at::Tensor&, ReduceOp, const Call&) override { return done(); }
  Work broadcast(const at::Tensor&, int, const Call&) override { return done(); }
  Work barrier(const Call&) override { return done(); }

  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      std::span<const std::int64_t> counts, ReduceOp, const Call&) override {
    fill_from(output.view({-1}), part(input, counts, rank_));
    return done();
  }

  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> counts, const Call&) override {
    for (int member = 0; member < size_; ++member) {
      fill_from(part(output, counts, member), input.view({-1}));
    }
    return done();
  }

  Work all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                  const at::Tensor& input, std::span<const std::int64_t> input_counts,
                  const Call&) override {
    for (int member = 0; member < size_; ++member) {
      fill_from(part(output, output_counts, member), part(input, input_counts, member));
    }
    return done();
  }

  Work gather(const at::Tensor& output, const at::Tensor& input, int root, const Call&) override {
    if (root != rank_) return done();
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(size_), input.numel());
    for (int member = 0; member < size_; ++member)
      fill_from(part(output, counts, member), input.view({-1}));
    return done();
  }

  Work scatter(const at::Tensor& output, const at::Tensor& input, int root, const Call&) override {
    if (root == rank_) {
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(size_), output.numel());
      fill_from(output.view({-1}), part(input, counts, rank_));
    } else {
      output.zero_();
    }
    return done();
  }

  Work exchange(std::span<const Transfer> transfers, const Call&) override {
    for (const Transfer& transfer : transfers) {
      if (transfer.direction == Transfer::Direction::kReceive) transfer.tensor.zero_();
    }
    return done();
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = decode_failure(reason);
  }

 private:
  // Later operations fail as on any engine.
  [[nodiscard]] Work done() const {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw PeerError(aborted_->message, aborted_->hint);
    return {};
  }

  static at::Tensor part(const at::Tensor& whole, std::span<const std::int64_t> counts,
                         int member) {
    std::int64_t start = 0;
    for (int i = 0; i < member; ++i) start += counts[static_cast<std::size_t>(i)];
    return whole.view({-1}).narrow(0, start, counts[static_cast<std::size_t>(member)]);
  }

  int rank_;
  int size_;
  mutable std::mutex mutex_;
  std::optional<Failure> aborted_;
};

EngineAvailability fake_availability() {
  return {.built = true,
          .usable = true,
          .reason = "dry runs of any size in one process: sends nothing"};
}

std::shared_ptr<GroupEngine> make_fake_engine(const EngineContext& context,
                                              detail::GroupRendezvous*) {
  return std::make_shared<FakeEngine>(context.index, static_cast<int>(context.ranks.size()));
}

}  // namespace

const EngineKind& fake_kind() {
  static constexpr EngineKind kKind{.name = "fake",
                                    .traits = {.reach = EngineTraits::Reach::kNowhere},
                                    .availability = fake_availability,
                                    .make = make_fake_engine};
  return kKind;
}

}  // namespace troika
