#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/optim/gradient_norm.h>
#include <troika/optim/shard_squares.h>
#include <troika/parallel/data_parallel/optimizer_access.h>

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

OptimizerAccess::OptimizerAccess(std::span<const GradientSlot> slots, ParameterShards* shards,
                                 ReplicaChecker& checker, Session session, int zero_stage)
    : slots_(slots),
      shards_(shards),
      checker_(checker),
      session_(std::move(session)),
      zero_stage_(zero_stage) {}

void OptimizerAccess::refuse_unused_gradients() const {
  if (!shards_) return;
  const std::string stage = "zero_stage = " + std::to_string(zero_stage_);
  if (!is_attached_) {
    throw UsageError(
        stage + " without a troika::ZeroRedundancyOptimizer: " + title_of(slots_.front()) +
            " and others would not be updated",
        "make troika::ZeroRedundancyOptimizer<torch::optim::...> optimizer(model, ...) "
        "in place of an optimiser of the module's parameters");
  }
  if (!has_gradients_) return;
  throw UsageError(stage + ": " + title_of(slots_.front()) +
                       " and others have gradients that the optimiser has not used",
                   "call step() or zero_grad() of the ZeroRedundancyOptimizer after each average; "
                   "add gradients up inside no_sync()");
}

std::vector<at::Tensor> OptimizerAccess::shards_of(const at::Tensor& parameter) const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].parameter.is_same(parameter)) continue;
    return shards_ ? shards_->shards_of(i) : std::vector<at::Tensor>{parameter};
  }
  throw UsageError("an optimiser is given a tensor that is no trained parameter of the module",
                   "give it parameters of the module that DataParallel has");
}

std::vector<at::Tensor> OptimizerAccess::shards() const {
  std::vector<at::Tensor> all;
  for (const GradientSlot& slot : slots_) {
    for (at::Tensor& shard : shards_of(slot.parameter)) all.push_back(std::move(shard));
  }
  return all;
}

std::vector<ParameterShard> OptimizerAccess::named_shards() const {
  if (shards_) return shards_->named_shards();
  std::vector<ParameterShard> whole;
  for (const GradientSlot& slot : slots_) {
    whole.push_back({slot.name, 0, slot.parameter, slot.sizes});
  }
  return whole;
}

std::string OptimizerAccess::describe_shards() const {
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

void OptimizerAccess::check_saved_shards(const std::string* saved) const {
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

void OptimizerAccess::refuse_missing_model() const {
  if (has_model_) return;
  throw UsageError("a step of a ZeroRedundancyOptimizer whose DataParallel is gone",
                   "make a new optimiser with each DataParallel");
}

void OptimizerAccess::begin_update() {
  if (!shards_) return;
  refuse_missing_model();
  checker_.begin_update();
}

void OptimizerAccess::end_update() {
  has_gradients_ = false;
  if (shards_) shards_->gather();
}

void OptimizerAccess::skip_update() {
  if (!shards_) return;
  refuse_missing_model();
  has_gradients_ = false;
}

void OptimizerAccess::zero_grad() {
  if (!shards_ || !has_model_) return;
  has_gradients_ = false;
  shards_->drop_gradients();
}

double OptimizerAccess::clip_grad_norm(double max_norm) {
  if (!(max_norm > 0)) throw UsageError("clip_grad_norm() takes a norm above 0");
  std::array<double, 1> squares = {0};
  if (shards_) {
    squares[0] = shards_->sum_of_squares();
    session_.reduce(squares, ReduceOp::kSum, "norm of gradients");
  } else {
    at::Tensor sum;
    for (const GradientSlot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      const at::Tensor own = detail::sum_of_squares(slot.parameter.grad());
      sum = sum.defined() ? sum + own : own;
    }
    if (sum.defined()) squares[0] = sum.item<double>();
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

}  // namespace troika::detail
