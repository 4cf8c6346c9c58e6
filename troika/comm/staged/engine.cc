#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/comm/operation_context.h>
#include <troika/comm/staged/engine.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace troika {

// An operation in pieces. A piece copies what it gives to the host, starts the host's operation,
// and, once that is over, copies back what it takes.
class StagedEngine::Operation final : public Work::State,
                                      public std::enable_shared_from_this<Operation> {
 public:
  Operation(OperationContext context, StagedEngine& engine) : context_(context), engine_(engine) {}

  // Returns the host's copy of what the operation gives.
  [[nodiscard]] at::Tensor give(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cpu()) return tensor;
    const DeviceEvent before = DeviceEvent::record(tensor.device());
    const DeviceStream::Scope beside(engine_.side_stream(tensor.device()));
    // The copy waits on the device for what the caller has queued, and the host waits for neither.
    before.block_stream();
    at::Tensor host = host_memory_for(tensor.device(), tensor);
    host.copy_(tensor, /*non_blocking=*/true);
    given_.push_back(tensor);
    copied_ = DeviceEvent::record(tensor.device());
    return host;
  }
  // Returns the host's memory for what it takes, which wait() copies to `tensor`.
  [[nodiscard]] at::Tensor take(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cpu()) return tensor;
    taken_.push_back({tensor, host_memory_for(tensor.device(), tensor)});
    return taken_.back().host;
  }
  // Returns the host's copy of what it gives and takes in place.
  [[nodiscard]] at::Tensor give_and_take(const at::Tensor& tensor) {
    at::Tensor host = give(tensor);
    if (!tensor.is_cpu()) taken_.push_back({tensor, host});
    return host;
  }
  // Ends a piece: `run` starts the host's operation on what the calls above returned.
  void add_piece(std::function<Work(GroupEngine&, const Call&)> run) {
    pieces_.push_back({std::exchange(copied_, {}),
                       std::exchange(given_, {}),
                       std::move(run),
                       std::exchange(taken_, {}),
                       {}});
  }

  void queued(Work started) { started_ = std::move(started); }
  // Starts the host's operations, each when its input has come. If it does not come, the others
  // must not take a later operation for this one: the group is aborted.
  void start_pieces() {
    const OperationContext context = context_.get();
    for (Piece& piece : pieces_) {
      try {
        piece.copied.wait(context.deadline, context.text());
      } catch (const Error& error) {
        engine_.inner_->abort(error.what());
        throw;
      }
      piece.copied = {};
      piece.given.clear();
      const Call call{context.label, context.deadline, context.record, nullptr};
      piece.work = piece.run(*engine_.inner_, call);
      piece.run = nullptr;
    }
  }

  bool done() override {
    return started_.done() &&
           std::ranges::all_of(pieces_, [](const Piece& piece) { return piece.work.done(); });
  }

  void wait() override {
    started_.wait();
    const std::lock_guard lock(mutex_);
    for (Piece& piece : pieces_) {
      piece.work.wait();
      for (const Taken& each : piece.taken) {
        each.device.copy_(each.host, /*non_blocking=*/true);
        copied_back_ = DeviceEvent::record(each.device.device());
      }
      piece.taken.clear();
    }
    copied_back_.block_stream();  // of another thread, which waits for the same operation
  }

  // The host's part is done by then; what is on its way back is for wait() to order.
  void on_done(std::function<void(std::exception_ptr)> callback) override {
    started_.on_done([self = shared_from_this(),
                      callback = std::move(callback)](const std::exception_ptr& error) {
      if (error || self->pieces_.empty()) return callback(error);
      self->when_pieces_are_done(callback);
    });
  }

  [[nodiscard]] const OwnedContext& context() const { return context_; }

 private:
  struct Taken {
    at::Tensor device, host;
  };
  struct Piece {
    DeviceEvent copied;             // the input has come
    std::vector<at::Tensor> given;  // which the copy reads until then
    std::function<Work(GroupEngine&, const Call&)> run;
    std::vector<Taken> taken;
    Work work;
  };
  // Of all pieces; the first error counts.
  struct Countdown {
    std::mutex mutex;
    std::size_t left = 0;
    std::exception_ptr error;
  };

  void when_pieces_are_done(const std::function<void(std::exception_ptr)>& callback) {
    const auto countdown = std::make_shared<Countdown>();
    countdown->left = pieces_.size();
    for (const Piece& piece : pieces_) {
      piece.work.on_done([countdown, callback](const std::exception_ptr& error) {
        {
          const std::lock_guard lock(countdown->mutex);
          if (!countdown->error) countdown->error = error;
          if (--countdown->left > 0) return;
        }
        callback(countdown->error);
      });
    }
  }

  OwnedContext context_;
  StagedEngine& engine_;
  // Of the piece that is being made.
  DeviceEvent copied_;
  std::vector<at::Tensor> given_;
  std::vector<Taken> taken_;
  std::vector<Piece> pieces_;
  Work started_;
  std::mutex mutex_;  // of waiters
  DeviceEvent copied_back_;
};

StagedEngine::StagedEngine(std::shared_ptr<GroupEngine> host_engine, int index)
    : inner_(std::move(host_engine)),
      index_(index),
      queue_(std::make_unique<WorkQueue>(WorkQueue::Order::kAsAdded)) {}

StagedEngine::~StagedEngine() = default;

const DeviceStream& StagedEngine::side_stream(at::Device device) {
  return side_streams_.try_emplace(name_of(device), device).first->second;
}

std::shared_ptr<StagedEngine::Operation> StagedEngine::begin(std::string_view name,
                                                             const Call& call) {
  return std::make_shared<Operation>(OperationContext(name, call), *this);
}

Work StagedEngine::start(std::shared_ptr<Operation> operation) {
  const OperationContext context = operation->context().get();
  WorkQueue::Job job{context.deadline, [operation] { operation->start_pieces(); }, {}};
  // The operation holds the Work that holds this: neither it nor the engine may be held here.
  job.overdue = [engine = std::weak_ptr(inner_), of = operation->context()] {
    const OperationContext late = of.get();
    const std::string message = late.text() + ": an earlier operation took more than " +
                                format_duration(late.deadline.timeout().count());
    if (const auto alive = engine.lock()) alive->abort(message);
    return std::make_exception_ptr(DeadlineError(message));
  };
  operation->queued(queue_->add(std::move(job)));
  return Work(std::move(operation));
}

Work StagedEngine::all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) {
  const auto operation = begin("all_reduce", call);
  const at::Tensor flat = tensor.view({-1});
  const std::int64_t most = std::max<std::int64_t>(1, kChunkBytes / tensor.element_size());
  for (std::int64_t begin = 0; begin == 0 || begin < flat.numel(); begin += most) {
    const std::int64_t count = std::min(most, flat.numel() - begin);
    const at::Tensor host = operation->give_and_take(flat.narrow(0, begin, count));
    operation->add_piece([host, op](GroupEngine& engine, const Call& recorded) {
      return engine.all_reduce(host, op, recorded);
    });
  }
  return start(operation);
}

Work StagedEngine::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                  std::span<const std::int64_t> counts, ReduceOp op,
                                  const Call& call) {
  const auto operation = begin("reduce_scatter", call);
  const at::Tensor from = operation->give(input), to = operation->take(output);
  operation->add_piece([from, to, op, counts = std::vector(counts.begin(), counts.end())](
                           GroupEngine& engine, const Call& recorded) {
    return engine.reduce_scatter(to, from, counts, op, recorded);
  });
  return start(operation);
}

Work StagedEngine::all_gather(const at::Tensor& output, const at::Tensor& input,
                              std::span<const std::int64_t> counts, const Call& call) {
  const auto operation = begin("all_gather", call);
  const at::Tensor from = operation->give(input), to = operation->take(output);
  operation->add_piece([from, to, counts = std::vector(counts.begin(), counts.end())](
                           GroupEngine& engine, const Call& recorded) {
    return engine.all_gather(to, from, counts, recorded);
  });
  return start(operation);
}

Work StagedEngine::all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                              const at::Tensor& input, std::span<const std::int64_t> input_counts,
                              const Call& call) {
  const auto operation = begin("all_to_all", call);
  const at::Tensor from = operation->give(input), to = operation->take(output);
  operation->add_piece([from, to, out = std::vector(output_counts.begin(), output_counts.end()),
                        in = std::vector(input_counts.begin(), input_counts.end())](
                           GroupEngine& engine, const Call& recorded) {
    return engine.all_to_all(to, out, from, in, recorded);
  });
  return start(operation);
}

Work StagedEngine::broadcast(const at::Tensor& tensor, int root, const Call& call) {
  const auto operation = begin("broadcast", call);
  const at::Tensor host = root == index_ ? operation->give(tensor) : operation->take(tensor);
  operation->add_piece([host, root](GroupEngine& engine, const Call& recorded) {
    return engine.broadcast(host, root, recorded);
  });
  return start(operation);
}

Work StagedEngine::gather(const at::Tensor& output, const at::Tensor& input, int root,
                          const Call& call) {
  const auto operation = begin("gather", call);
  const at::Tensor from = operation->give(input);
  const at::Tensor to = root == index_ ? operation->take(output) : output;
  operation->add_piece([from, to, root](GroupEngine& engine, const Call& recorded) {
    return engine.gather(to, from, root, recorded);
  });
  return start(operation);
}

Work StagedEngine::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                           const Call& call) {
  const auto operation = begin("scatter", call);
  const at::Tensor from = root == index_ ? operation->give(input) : input;
  const at::Tensor to = operation->take(output);
  operation->add_piece([from, to, root](GroupEngine& engine, const Call& recorded) {
    return engine.scatter(to, from, root, recorded);
  });
  return start(operation);
}

Work StagedEngine::exchange(std::span<const Transfer> transfers, const Call& call) {
  const auto operation = begin("exchange", call);
  std::vector<Transfer> legs;
  for (const Transfer& each : transfers) {
    const bool sends = each.direction == Transfer::Direction::kSend;
    legs.push_back({each.direction, each.peer,
                    sends ? operation->give(each.tensor) : operation->take(each.tensor)});
  }
  operation->add_piece([legs = std::move(legs)](GroupEngine& engine, const Call& recorded) {
    return engine.exchange(legs, recorded);
  });
  return start(operation);
}

Work StagedEngine::barrier(const Call& call) {
  const auto operation = begin("barrier", call);
  operation->add_piece(
      [](GroupEngine& engine, const Call& recorded) { return engine.barrier(recorded); });
  return start(operation);
}

}  // namespace troika
