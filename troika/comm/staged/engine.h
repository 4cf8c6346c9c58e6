// Carries tensors of a device over an engine of the host: through pinned memory, piece by piece, so
// that copies and exchange overlap. Copies to the host go on beside the device's current stream, as
// soon as that has come to the call; copies back are queued on the stream that is current where an
// operation is waited for, and the host does not wait for them. Internal.
#pragma once

#include <troika/comm/group.h>
#include <troika/comm/work_queue.h>
#include <troika/device/device.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

class StagedEngine final : public GroupEngine {
 public:
  // The bytes of one piece of an all-reduce.
  static constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;

  // `index` is this member's position in the group.
  StagedEngine(std::shared_ptr<GroupEngine> host_engine, int index);
  // Waits for operations under way.
  ~StagedEngine() override;

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] bool accepts(at::DeviceType device) const override {
    return device != at::DeviceType::Meta;
  }
  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) override;
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      std::span<const std::int64_t> counts, ReduceOp op, const Call& call) override;
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> counts, const Call& call) override;
  Work all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                  const at::Tensor& input, std::span<const std::int64_t> input_counts,
                  const Call& call) override;
  Work broadcast(const at::Tensor& tensor, int root, const Call& call) override;
  Work gather(const at::Tensor& output, const at::Tensor& input, int root,
              const Call& call) override;
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root,
               const Call& call) override;
  Work exchange(std::span<const Transfer> transfers, const Call& call) override;
  Work barrier(const Call& call) override;
  void abort(const std::string& reason) override { inner_->abort(reason); }
  [[nodiscard]] at::Tensor allocate(std::size_t bytes) override { return inner_->allocate(bytes); }

 private:
  class Operation;

  // Begins an operation: its name, a literal, and the call.
  [[nodiscard]] std::shared_ptr<Operation> begin(std::string_view name, const Call& call);
  // Queues the operation after those before it.
  Work start(std::shared_ptr<Operation> operation);
  [[nodiscard]] const DeviceStream& side_stream(at::Device device);

  std::shared_ptr<GroupEngine> inner_;
  int index_;
  std::map<std::string, DeviceStream> side_streams_;  // by the device's name
  std::unique_ptr<WorkQueue> queue_;
};

}  // namespace troika
