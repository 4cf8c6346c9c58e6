#include <troika/comm/blocking_engine.h>

#include <utility>
#include <vector>

namespace troika {
namespace {

std::vector<std::int64_t> copy_of(std::span<const std::int64_t> counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

Work BlockingEngine::collective(std::string_view operation, const Call& call, Body body) {
  const OwnedContext owned(OperationContext(operation, call));
  throw_if_failed(owned.get());
  WorkQueue::Job job{.deadline = end_of(call.deadline), .run = {}, .overdue = {}};
  job.run = [this, owned, body = std::move(body)] {
    const OperationContext context = owned.get();
    // Asked again in the thread: the group may have broken while the operation was in the queue.
    throw_if_failed(context);
    run_watched(context, [&] { body(context); });
  };
  return enqueue(std::move(job), owned);
}

Work BlockingEngine::all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) {
  return collective("all_reduce", call, [=, this](const OperationContext& context) {
    run_all_reduce(tensor, op, context);
  });
}

Work BlockingEngine::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                    std::span<const std::int64_t> counts, ReduceOp op,
                                    const Call& call) {
  return collective("reduce_scatter", call,
                    [=, this, counts = copy_of(counts)](const OperationContext& context) {
                      run_reduce_scatter(output, input, counts, op, context);
                    });
}

Work BlockingEngine::all_gather(const at::Tensor& output, const at::Tensor& input,
                                std::span<const std::int64_t> counts, const Call& call) {
  return collective("all_gather", call,
                    [=, this, counts = copy_of(counts)](const OperationContext& context) {
                      run_all_gather(output, input, counts, context);
                    });
}

Work BlockingEngine::all_to_all(const at::Tensor& output,
                                std::span<const std::int64_t> output_counts,
                                const at::Tensor& input, std::span<const std::int64_t> input_counts,
                                const Call& call) {
  return collective(
      "all_to_all", call,
      [=, this, from = copy_of(output_counts), to = copy_of(input_counts)](
          const OperationContext& context) { run_all_to_all(output, from, input, to, context); });
}

Work BlockingEngine::broadcast(const at::Tensor& tensor, int root, const Call& call) {
  return collective("broadcast", call, [=, this](const OperationContext& context) {
    run_broadcast(tensor, root, context);
  });
}

Work BlockingEngine::gather(const at::Tensor& output, const at::Tensor& input, int root,
                            const Call& call) {
  return collective("gather", call, [=, this](const OperationContext& context) {
    run_gather(output, input, root, context);
  });
}

Work BlockingEngine::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                             const Call& call) {
  return collective("scatter", call, [=, this](const OperationContext& context) {
    run_scatter(output, input, root, context);
  });
}

Work BlockingEngine::barrier(const Call& call) {
  return collective("barrier", call,
                    [this](const OperationContext& context) { run_barrier(context); });
}

}  // namespace troika
