// Extends LibTorch: for programs that include torch/torch.h. Batch normalisation over the batches
// of all ranks, in place of torch::nn::BatchNorm1d, 2d and 3d: the same parameters and buffers
// under the same names, so that files of the one load into the other. Ioffe and Szegedy 2015;
// variances of parts are combined as Chan, Golub and LeVeque (1979) do.
//
// Every rank runs the same forward and backward passes. The batches may have any sizes, none as
// well. With DataParallel, gradients are those of one process with all of the batches: of the mean
// of the ranks' losses, or weighted by samples where weigh() has been called before the backward
// pass.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>
#include <troika/session/session.h>

#include <memory>

namespace troika {

class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const Session& session);
  // Synchronises the ranks of `group`, with this time-out for each operation.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Group group, Seconds timeout);

  // Normalises `input` [N, C] or [N, C, ...], on the CPU. In eval() it is local. Throws UsageError
  // for another shape; DeadlineError, PeerError.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  // Sets the weight of this rank's loss in the next backward pass, and a group of all ranks for the
  // norms of a DataParallel's module. That group may be the one that carries gradients only if no
  // bucket is launched before the backward pass has ended. Otherwise ranks that leave parameters
  // out reach a norm with fewer buckets behind them than others.
  void set_data_parallel(std::shared_ptr<double> weight, Group group);

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  void update_running(const at::Tensor& mean, const at::Tensor& variance, double count);

  Group group_;
  Seconds timeout_;
  std::shared_ptr<double> weight_ = std::make_shared<double>(1.0);
};

TORCH_MODULE(SyncBatchNorm);

}  // namespace troika
