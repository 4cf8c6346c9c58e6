#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/parallel/data_parallel/local_steps.h>
#include <troika/sync/outer_step.h>

#include <cmath>
#include <string>
#include <vector>

namespace troika {
namespace {

void check_options(const LocalStepsOptions& options) {
  if (options.every_steps < 1) {
    throw UsageError("every_steps = " + std::to_string(options.every_steps) +
                     ": an exchange follows one step at least");
  }
  if (!(options.outer_lr > 0) || !(options.outer_momentum >= 0 && options.outer_momentum < 1)) {
    throw UsageError("outer_lr is to be positive, and outer_momentum from 0 up to but not 1");
  }
}

}  // namespace

struct LocalSteps::Impl {
  struct Block {
    detail::ReplicaBlock own;
    at::Tensor anchor, momentum;  // [elements]; the latter where there is any
  };

  Impl(ReplicaTensors the_tensors, Session the_session, LocalStepsOptions the_options)
      : tensors(std::move(the_tensors)), session(std::move(the_session)), options(the_options) {
    check_options(options);
    for (detail::ReplicaBlock& own : detail::agree_on(tensors, session, "LocalSteps")) {
      Block block{std::move(own), {}, {}};
      block.anchor = block.own.read();
      if (options.outer_momentum > 0) block.momentum = at::zeros_like(block.anchor);
      blocks.push_back(std::move(block));
    }
  }

  void exchange() {
    const torch::NoGradGuard no_grad;
    for (Block& block : blocks) {
      const at::Tensor& anchor = block.anchor;
      const std::int64_t count = anchor.numel();
      const at::Tensor change = at::empty({count + 1}, anchor.options());
      change.narrow(0, 0, count).copy_(anchor).sub_(block.own.read()).mul_(weight);
      change.narrow(0, count, 1).fill_(weight);
      session.world().all_reduce(change, ReduceOp::kSum, session.call("local steps")).wait();
      const double total = change[count].item<double>();
      // Where no rank has trained on anything, nothing has changed.
      const at::Tensor gradient = change.narrow(0, 0, count).div_(total > 0 ? total : 1);
      take_outer_step({options.outer_lr, options.outer_momentum}, anchor, block.momentum, gradient);
      block.own.write(anchor);
    }
    detail::average_buffers(tensors, session);
    steps = 0;
    weight = 0;
  }

  ReplicaTensors tensors;
  Session session;
  LocalStepsOptions options;
  std::vector<Block> blocks;
  int steps = 0;  // since the last exchange
  double weight = 0;
};

LocalSteps::LocalSteps(ReplicaTensors tensors, Session session, LocalStepsOptions options)
    : impl_(std::make_unique<Impl>(std::move(tensors), std::move(session), options)) {}
LocalSteps::LocalSteps(LocalSteps&&) noexcept = default;
LocalSteps& LocalSteps::operator=(LocalSteps&&) noexcept = default;
LocalSteps::~LocalSteps() = default;

bool LocalSteps::step(double weight) {
  if (!(weight >= 0) || !std::isfinite(weight)) {
    throw UsageError("a step's weight is a number of targets, 0 or more");
  }
  impl_->weight += weight;
  if (++impl_->steps < impl_->options.every_steps) return false;
  impl_->exchange();
  return true;
}

void LocalSteps::exchange() {
  impl_->exchange();
}

}  // namespace troika
