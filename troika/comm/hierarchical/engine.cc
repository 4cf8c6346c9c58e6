#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/failure/overdue.h>
#include <troika/comm/hierarchical/engine.h>

#include <ATen/ATen.h>

#include <utility>

namespace troika::detail {
namespace {

// More time for a step than for the one before.
constexpr Seconds kGrace{0.5};

Deadline later(const Deadline& deadline, Seconds more) {
  return Deadline::in(deadline.left() + more);
}

// The steps of an operation are operations of other names with its label: a user reads the name
// that he knows.
std::string in_users_words(std::string text, const std::string& label,
                           const std::string& users_name) {
  for (const char* operation : {"reduce_scatter", "all_reduce", "all_gather", "all_to_all",
                                "broadcast", "barrier", "exchange"}) {
    const std::string step = std::string(operation) + " " + quote(label);
    if (step == users_name) continue;
    for (std::size_t at = text.find(step); at != std::string::npos; at = text.find(step, at)) {
      text.replace(at, step.size(), users_name);
      at += users_name.size();
    }
  }
  return text;
}

std::vector<std::int64_t> to_vector(std::span<const std::int64_t> counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

// Two works as one.
class HierarchyEngine::CombinedWork final : public Work::State {
 public:
  CombinedWork(std::shared_ptr<HierarchyEngine> engine, OperationContext context, Work near,
               Work far)
      : engine_(std::move(engine)),
        context_(std::move(context)),
        near_(std::move(near)),
        far_(std::move(far)) {}

  bool done() override { return near_.done() && far_.done(); }
  void wait() override {
    try {
      engine_->run(context_, [this] {
        near_.wait();
        far_.wait();
      });
    } catch (...) {
      context_.record.record_error(std::current_exception());  // on_done() may come later, or never
      throw;
    }
  }
  void on_done(std::function<void(std::exception_ptr)> callback) override {
    struct Countdown {
      std::mutex mutex;
      int left = 2;
      std::exception_ptr error;
    };
    const auto one_more = [countdown = std::make_shared<Countdown>(),
                           callback = std::move(callback)](const std::exception_ptr& error) {
      {
        const std::lock_guard lock(countdown->mutex);
        if (error && !countdown->error) countdown->error = error;
        if (--countdown->left > 0) return;
      }
      callback(countdown->error);
    };
    near_.on_done(one_more);
    far_.on_done(one_more);
  }

 private:
  std::shared_ptr<HierarchyEngine> engine_;
  OperationContext context_;
  Work near_;
  Work far_;
};

HierarchyEngine::HierarchyEngine(std::string_view name, Members members, Hosts hosts,
                                 SubEngines engines, AbortStore abort_store)
    : name_(name),
      members_(std::move(members)),
      hosts_(std::move(hosts)),
      engines_(std::move(engines)),
      abort_store_(std::move(abort_store)),
      queue_(std::make_unique<WorkQueue>(WorkQueue::Order::kAsAdded)),
      abort_watcher_(std::make_unique<AbortWatcher>(
          abort_store_, [this](int member, const AbortReason& reason) {
            fail({members_.name(member) + " gave up: " + reason.message, reason.hint});
          })) {}

HierarchyEngine::~HierarchyEngine() {
  queue_.reset();
  abort_watcher_.reset();
}

Work HierarchyEngine::all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) {
  return collective("all_reduce", call, [=, this](const OperationContext& context) {
    all_reduce_across_hosts(tensor, op, context);
  });
}

Work HierarchyEngine::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                     std::span<const std::int64_t> counts, ReduceOp op,
                                     const Call& call) {
  return collective("reduce_scatter", call,
                    [=, this, counts = to_vector(counts)](const OperationContext& context) {
                      reduce_scatter_across_hosts(output, input, counts, op, context);
                    });
}

Work HierarchyEngine::all_gather(const at::Tensor& output, const at::Tensor& input,
                                 std::span<const std::int64_t> counts, const Call& call) {
  return collective("all_gather", call,
                    [=, this, counts = to_vector(counts)](const OperationContext& context) {
                      all_gather_across_hosts(output, input, counts, context);
                    });
}

Work HierarchyEngine::all_to_all(const at::Tensor& output,
                                 std::span<const std::int64_t> output_counts,
                                 const at::Tensor& input,
                                 std::span<const std::int64_t> input_counts, const Call& call) {
  return collective("all_to_all", call,
                    [=, this, from = to_vector(output_counts),
                     to = to_vector(input_counts)](const OperationContext& context) {
                      all_to_all_across_hosts(output, from, input, to, context);
                    });
}

Work HierarchyEngine::broadcast(const at::Tensor& tensor, int root, const Call& call) {
  return collective("broadcast", call, [=, this](const OperationContext& context) {
    broadcast_across_hosts(tensor, root, context);
  });
}

Work HierarchyEngine::gather(const at::Tensor& output, const at::Tensor& input, int root,
                             const Call& call) {
  std::vector<std::int64_t> to(static_cast<std::size_t>(size()), 0);
  std::vector<std::int64_t> from(to.size(), index() == root ? input.numel() : 0);
  to[static_cast<std::size_t>(root)] = input.numel();
  return collective("gather", call, [=, this](const OperationContext& context) {
    all_to_all_across_hosts(index() == root ? output : at::empty({0}, input.options()), from, input,
                            to, context);
  });
}

Work HierarchyEngine::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                              const Call& call) {
  std::vector<std::int64_t> from(static_cast<std::size_t>(size()), 0);
  std::vector<std::int64_t> to(from.size(), index() == root ? output.numel() : 0);
  from[static_cast<std::size_t>(root)] = output.numel();
  return collective("scatter", call, [=, this](const OperationContext& context) {
    all_to_all_across_hosts(
        output, from, index() == root ? input : at::empty({0}, output.options()), to, context);
  });
}

Work HierarchyEngine::barrier(const Call& call) {
  return collective("barrier", call,
                    [this](const OperationContext& context) { barrier_across_hosts(context); });
}

// All messages start now, in the caller's thread: an exchange never waits for an earlier one.
Work HierarchyEngine::exchange(std::span<const Transfer> transfers, const Call& call) {
  const OperationContext what = context_of("exchange", call);
  throw_if_broken(what);
  std::vector<Transfer> near, far;
  for (const Transfer& transfer : transfers) {
    if (hosts_.host_of(transfer.peer) == host()) {
      near.push_back({transfer.direction, hosts_.local_index_of(transfer.peer), transfer.tensor});
    } else {
      far.push_back(transfer);
    }
  }
  Work in_host, between_hosts;
  run(what, [&] {
    if (!near.empty()) {
      const std::lock_guard lock(inside_mutex_);
      in_host = engines_.inside->exchange(near, what.step_inside(Step::kFirst));
    }
    if (!far.empty()) between_hosts = engines_.all->exchange(far, call);
  });
  return Work(std::make_shared<CombinedWork>(shared_from_this(), what, in_host, between_hosts));
}

HierarchyEngine::OperationContext HierarchyEngine::context_of(std::string_view operation,
                                                              const Call& call) {
  return {std::string(operation) + " " + quote(call.label), std::string(call.label), call.deadline,
          call.record};
}

Call HierarchyEngine::OperationContext::step(Step step) const {
  const int steps_before = static_cast<int>(step);
  return {label, steps_before == 0 ? deadline : later(deadline, steps_before * kGrace), record};
}

Call HierarchyEngine::OperationContext::step_inside(Step step) const {
  Call call = this->step(step);
  call.record = record.unwritten();
  return call;
}

Work HierarchyEngine::collective(std::string_view operation, const Call& call,
                                 std::function<void(const OperationContext&)> body) {
  const OperationContext what = context_of(operation, call);
  throw_if_broken(what);
  constexpr int kMostSteps = 3;
  return queue_->add({.deadline = later(call.deadline, kMostSteps * kGrace),
                      .run =
                          [this, what, body = std::move(body)] {
                            throw_if_broken(what);
                            run(what, [&] { body(what); });
                          },
                      .overdue = [this, what] { return overdue(what); }});
}

void HierarchyEngine::run(const OperationContext& context, const std::function<void()>& body) {
  const AbortWatcher::ActiveOperation active(*abort_watcher_);
  try {
    body();
  } catch (const DeadlineError& error) {
    const std::string message = in_users_words(error.what(), context.label, context.text);
    const std::string hint = in_users_words(error.hint(), context.label, context.text);
    throw_if_broken(context);
    fail({message, hint});
    throw DeadlineError(message, hint);
  } catch (const PeerError& error) {
    const std::string message = in_users_words(error.what(), context.label, context.text);
    throw_if_broken(context);
    fail({message, error.hint()});
    throw PeerError(message, error.hint());
  } catch (const std::exception& error) {
    fail({context.text + " failed: " + error.what(), ""});
    throw;
  }
}

void HierarchyEngine::throw_if_broken(const OperationContext& context) {
  const std::lock_guard lock(mutex_);
  if (broken_) {
    throw PeerError(context.text + " on axis " + members_.axis + ": " + broken_->message,
                    broken_->hint);
  }
}

std::exception_ptr HierarchyEngine::overdue(const OperationContext& context) {
  return overdue_error(context.text + " on axis " + members_.axis, context.deadline.timeout(),
                       context.record, [this](const AbortReason& reason) { fail(reason); });
}

void HierarchyEngine::fail(const AbortReason& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_ = reason;
  }
  abort_store_.post(reason);
  for (const auto& engine : {engines_.inside, engines_.between, engines_.all}) {
    if (engine) engine->abort(reason.text());
  }
}

void HierarchyEngine::abort(const std::string& reason) {
  fail(AbortReason::from(reason));
}

at::Tensor HierarchyEngine::allocate(std::size_t bytes) {
  return engines_.inside ? engines_.inside->allocate(bytes) : GroupEngine::allocate(bytes);
}

}  // namespace troika::detail
