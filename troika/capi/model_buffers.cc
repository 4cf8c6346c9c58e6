#include <ATen/ATen.h>
#include <troika/capi/model_buffers.h>
#include <troika/device/device.h>

#include <utility>

namespace troika {
namespace {

// Not after - before, which is no number where both are infinite.
at::Tensor change_of(const at::Tensor& before, const at::Tensor& after) {
  const at::Tensor difference = after.to(at::kDouble) - before.to(at::kDouble);
  return difference.masked_fill_(after.eq(before), 0).view(-1);
}

// Counts stay whole.
void move_by(const at::Tensor& buffer, const at::Tensor& before, const at::Tensor& change) {
  at::Tensor moved = before.to(at::kDouble) + change.view(before.sizes());
  if (!buffer.is_floating_point()) moved.round_();
  buffer.copy_(at::where(change.view(before.sizes()).eq(0), before, moved.to(before.dtype())));
}

}  // namespace

ModelBuffers::ModelBuffers(std::vector<NamedTensor> buffers, Session session, Kept kept)
    : buffers_(std::move(buffers)), session_(std::move(session)), kept_(kept) {}

void ModelBuffers::remember() {
  before_.clear();
  for (const NamedTensor& each : buffers_) before_.push_back(each.tensor.clone());
}

void ModelBuffers::restore() {
  for (std::size_t i = 0; i < before_.size(); ++i) buffers_[i].tensor.copy_(before_[i]);
}

ModelBuffers::Changed ModelBuffers::changed_on_any_rank(std::int64_t samples) const {
  std::vector<double> facts = {static_cast<double>(samples)};
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    facts.push_back(at::equal(before_[i], buffers_[i].tensor) ? 0 : 1);
  }
  session_.reduce(facts, ReduceOp::kSum, "buffers that a step has changed");
  Changed changed{{}, facts[0]};
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (facts[i + 1] > 0) changed.positions.push_back(i);
  }
  return changed;
}

void ModelBuffers::average(std::int64_t samples) {
  if (kept_ == Kept::kTogether || session_.size() == 1 || buffers_.empty()) return;
  const Changed changed = changed_on_any_rank(samples);
  if (changed.positions.empty()) return;
  const double weight = static_cast<double>(samples) / changed.samples;
  std::vector<at::Tensor> changes;
  for (const std::size_t i : changed.positions) {
    changes.push_back(change_of(before_[i], buffers_[i].tensor).mul_(weight));
  }
  const at::Tensor all = to_host(at::cat(changes));
  session_.world().all_reduce(all, ReduceOp::kSum, session_.call("running statistics")).wait();
  const at::Tensor there = to_device(all, buffers_[0].tensor.device());
  std::int64_t first = 0;
  for (const std::size_t i : changed.positions) {
    const std::int64_t count = before_[i].numel();
    move_by(buffers_[i].tensor, before_[i], there.narrow(0, first, count));
    first += count;
  }
}

void ModelBuffers::broadcast() {
  for (const NamedTensor& each : buffers_) {
    const bool floating = each.tensor.is_floating_point();
    const at::Tensor sent =
        to_host(each.tensor).to(floating ? each.tensor.scalar_type() : at::kLong).contiguous();
    if (sent.numel() == 0) continue;
    session_.world().broadcast(sent.view(-1), 0, session_.call("loaded buffers")).wait();
    each.tensor.copy_(sent);
  }
}

}  // namespace troika
