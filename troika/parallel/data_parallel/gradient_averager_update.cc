// What an optimiser asks for: shards of parameters, and what goes around its step.
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/optim/gradient_norm.h>
#include <troika/parallel/data_parallel/gradient_averager.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <sstream>

namespace troika::detail {
namespace {

std::string name_of_rank(const Session& session) {
  return "rank " + std::to_string(session.rank()) + " of " + std::to_string(session.size());
}

}  // namespace

// At ZeRO stages 1 and 2 an average takes the place of the one before, and a pass without one needs
// its memory. What this depends on is the same on all ranks.
void GradientAverager::refuse_unused_gradients() const {
  if (!shards_) return;
  const std::string stage = "zero_stage = " + std::to_string(options_.zero_stage);
  if (!updated_) {
    throw UsageError(
        stage + " without a troika::ZeroRedundancyOptimizer: " + title_of(slots_.front()) +
            " and others would not be updated",
        "make troika::ZeroRedundancyOptimizer<torch::optim::...> optimizer(model, ...) "
        "in place of an optimiser of the module's parameters");
  }
  if (!pending_) return;
  throw UsageError(stage + ": " + title_of(slots_.front()) +
                       " and others have gradients that the optimiser has not used",
                   "call step() or zero_grad() of the ZeroRedundancyOptimizer after each average; "
                   "add gradients up inside no_sync()");
}

std::vector<at::Tensor> GradientAverager::shards_of(const at::Tensor& parameter) const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].parameter.is_same(parameter)) continue;
    return shards_ ? shards_->shards_of(i) : std::vector<at::Tensor>{parameter};
  }
  throw UsageError("an optimiser is given a tensor that is no trained parameter of the module",
                   "give it parameters of the module that DataParallel has");
}

std::vector<at::Tensor> GradientAverager::shards() const {
  std::vector<at::Tensor> all;
  for (const GradientSlot& slot : slots_) {
    for (at::Tensor& shard : shards_of(slot.parameter)) all.push_back(std::move(shard));
  }
  return all;
}

std::string GradientAverager::describe_shards() const {
  if (!shards_) return "";
  ContentHash layout;
  std::ostringstream text;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const GradientSlot& slot = slots_[i];
    text << slot.name << ' ' << at::IntArrayRef(slot.sizes) << ' ' << slot.dtype << ' '
         << slot.bucket << ' ' << slot.offset;
    for (const at::Tensor& shard : shards_->shards_of(i)) text << ' ' << shard.numel();
    text << '\n';
  }
  layout.update(text.str());
  return name_of_rank(session_) + "; layout " + hex(layout.digest());
}

void GradientAverager::check_saved_shards(const std::string* saved) const {
  const std::string own = describe_shards();
  if (saved == nullptr && own.empty()) return;
  if (saved != nullptr && *saved == own) return;
  const std::string here =
      own.empty() ? "where parameters are whole (zero_stage = 0)" : "on " + name_of_rank(session_);
  if (saved == nullptr || saved->empty()) {
    throw UsageError("state of an optimiser of whole parameters cannot be loaded " + here,
                     "load what this rank's ZeroRedundancyOptimizer has saved");
  }
  const std::string from = saved->substr(0, saved->find(';'));
  const bool same_rank = !own.empty() && from == name_of_rank(session_);
  throw UsageError("state of the optimiser of " + quote(from) + " cannot be loaded " + here +
                       (same_rank ? ": its parameters are cut otherwise" : ""),
                   same_rank ? "load it with the module, buckets and dtypes that it was saved with"
                             : "each rank loads what it has saved, in a job of as many ranks");
}

void GradientAverager::begin_update() {
  if (!shards_) return;
  if (!hooked_) {
    throw UsageError("a step of a ZeroRedundancyOptimizer whose DataParallel is gone",
                     "make a new optimiser with each DataParallel");
  }
  check_parameter_memory();
  writes_before_update_ = writes();
}

void GradientAverager::end_update() {
  pending_ = false;
  if (shards_) shards_->gather();
}

void GradientAverager::zero_grad() {
  if (!shards_ || !hooked_) return;
  pending_ = false;
  for (ModuleBucket& bucket : buckets_->all()) buckets_->release_buffer(bucket, slots_);
  for (const GradientSlot& slot : slots_) slot.parameter.mutable_grad() = at::Tensor();
}

double GradientAverager::clip_grad_norm(double max_norm) {
  if (!(max_norm > 0)) throw UsageError("clip_grad_norm() takes a norm above 0");
  std::array<double, 1> squares = {0};
  if (shards_) {
    squares[0] = shards_->sum_of_squares();
    session_.reduce(squares, ReduceOp::kSum, "norm of gradients");
  } else {
    for (const GradientSlot& slot : slots_) {
      const at::Tensor& gradient = slot.parameter.grad();
      if (gradient.defined()) squares[0] += gradient.to(at::kDouble).square().sum().item<double>();
    }
  }
  const double norm = std::sqrt(squares[0]);
  if (!std::isfinite(norm)) return norm;
  const double factor = clip_factor(norm, max_norm);
  if (factor == 1) return norm;
  if (shards_) {
    shards_->scale_gradients(factor);
  } else {
    for (const GradientSlot& slot : slots_) {
      if (slot.parameter.grad().defined()) slot.parameter.mutable_grad().mul_(factor);
    }
  }
  return norm;
}

// Of each parameter, since all ranks had the same values; loads count.
std::vector<std::uint32_t> GradientAverager::writes() const {
  std::vector<std::uint32_t> writes = versions();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    writes[i] += slots_[i].moves - base_versions_[i];
  }
  return writes;
}

// An update gathers values, and with them makes equal what was written to on some ranks only before
// it: each rank's own shards of it have stayed. The numbers of writes still tell.
void GradientAverager::compare_writes() const {
  std::string own;
  for (const std::uint32_t count : writes_before_update_) own += std::to_string(count) + "\n";
  const std::vector<std::string> all = session_.gather(own, "writes before the last step");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream first(all[0]), other(all[rank]);
    std::size_t slot = 0;
    for (std::string a, b; std::getline(first, a) && std::getline(other, b) && a == b;) ++slot;
    throw UsageError(title_of(slots_[std::min(slot, slots_.size() - 1)]) +
                         " was written to on some ranks only before the optimiser's step, not "
                         "alike on ranks 0 and " +
                         std::to_string(rank),
                     "do what writes to it on every rank; broadcast_from(0) gives all of them the "
                     "values of rank 0, a mixture by now");
  }
}

}  // namespace troika::detail
