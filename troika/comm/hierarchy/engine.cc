#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/hierarchy/engine.h>
#include <troika/comm/overdue.h>

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
std::string in_users_words(std::string text, const std::string& label, const std::string& named) {
  for (const char* operation : {"reduce_scatter", "all_reduce", "all_gather", "all_to_all",
                                "broadcast", "barrier", "exchange"}) {
    const std::string step = std::string(operation) + " " + quote(label);
    if (step == named) continue;
    for (std::size_t at = text.find(step); at != std::string::npos; at = text.find(step, at)) {
      text.replace(at, step.size(), named);
      at += named.size();
    }
  }
  return text;
}

std::vector<std::int64_t> to_vector(std::span<const std::int64_t> counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

// Two works as one.
class HierarchyEngine::Both final : public Work::State {
 public:
  Both(std::shared_ptr<HierarchyEngine> engine, Named named, Work near, Work far)
      : engine_(std::move(engine)),
        named_(std::move(named)),
        near_(std::move(near)),
        far_(std::move(far)) {}

  bool done() override { return near_.done() && far_.done(); }
  void wait() override {
    try {
      engine_->run(named_, [this] {
        near_.wait();
        far_.wait();
      });
    } catch (...) {
      named_.record.leave(std::current_exception());  // on_done() may come later, or never
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
  Named named_;
  Work near_;
  Work far_;
};

HierarchyEngine::HierarchyEngine(std::string_view name, Members members, Hosts hosts, Parts parts,
                                 ReasonBoard board)
    : name_(name),
      members_(std::move(members)),
      hosts_(std::move(hosts)),
      parts_(std::move(parts)),
      board_(std::move(board)),
      lane_(std::make_unique<Lane>(Lane::Order::kAsAdded)),
      watch_(std::make_unique<ReasonWatch>(board_, [this](int member, const Reason& reason) {
        break_off({members_.name(member) + " gave up: " + reason.message, reason.hint});
      })) {}

HierarchyEngine::~HierarchyEngine() {
  lane_.reset();
  watch_.reset();
}

Work HierarchyEngine::all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) {
  return collective("all_reduce", call,
                    [=, this](const Named& named) { reduce_all(tensor, op, named); });
}

Work HierarchyEngine::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                     std::span<const std::int64_t> counts, ReduceOp op,
                                     const Call& call) {
  return collective("reduce_scatter", call,
                    [=, this, counts = to_vector(counts)](const Named& named) {
                      reduce_to_parts(output, input, counts, op, named);
                    });
}

Work HierarchyEngine::all_gather(const at::Tensor& output, const at::Tensor& input,
                                 std::span<const std::int64_t> counts, const Call& call) {
  return collective("all_gather", call, [=, this, counts = to_vector(counts)](const Named& named) {
    gather_all(output, input, counts, named);
  });
}

Work HierarchyEngine::all_to_all(const at::Tensor& output,
                                 std::span<const std::int64_t> output_counts,
                                 const at::Tensor& input,
                                 std::span<const std::int64_t> input_counts, const Call& call) {
  return collective("all_to_all", call,
                    [=, this, from = to_vector(output_counts), to = to_vector(input_counts)](
                        const Named& named) { deliver(output, from, input, to, named); });
}

Work HierarchyEngine::broadcast(const at::Tensor& tensor, int root, const Call& call) {
  return collective("broadcast", call,
                    [=, this](const Named& named) { send_to_all(tensor, root, named); });
}

Work HierarchyEngine::gather(const at::Tensor& output, const at::Tensor& input, int root,
                             const Call& call) {
  std::vector<std::int64_t> to(static_cast<std::size_t>(size()), 0);
  std::vector<std::int64_t> from(to.size(), index() == root ? input.numel() : 0);
  to[static_cast<std::size_t>(root)] = input.numel();
  return collective("gather", call, [=, this](const Named& named) {
    deliver(index() == root ? output : at::empty({0}, input.options()), from, input, to, named);
  });
}

Work HierarchyEngine::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                              const Call& call) {
  std::vector<std::int64_t> from(static_cast<std::size_t>(size()), 0);
  std::vector<std::int64_t> to(from.size(), index() == root ? output.numel() : 0);
  from[static_cast<std::size_t>(root)] = output.numel();
  return collective("scatter", call, [=, this](const Named& named) {
    deliver(output, from, index() == root ? input : at::empty({0}, output.options()), to, named);
  });
}

Work HierarchyEngine::barrier(const Call& call) {
  return collective("barrier", call, [this](const Named& named) { meet(named); });
}

// All messages start now, in the caller's thread: an exchange never waits for an earlier one.
Work HierarchyEngine::exchange(std::span<const Transfer> transfers, const Call& call) {
  const Named what = named("exchange", call);
  throw_if_broken(what);
  std::vector<Transfer> near, far;
  for (const Transfer& transfer : transfers) {
    if (hosts_.host_of(transfer.peer) == host()) {
      near.push_back({transfer.direction, hosts_.place_of(transfer.peer), transfer.tensor});
    } else {
      far.push_back(transfer);
    }
  }
  Work in_host, between_hosts;
  run(what, [&] {
    if (!near.empty()) {
      const std::lock_guard lock(inside_mutex_);
      in_host = parts_.inside->exchange(near, what.step_inside(Step::kFirst));
    }
    if (!far.empty()) between_hosts = parts_.all->exchange(far, call);
  });
  return Work(std::make_shared<Both>(shared_from_this(), what, in_host, between_hosts));
}

HierarchyEngine::Named HierarchyEngine::named(std::string_view operation, const Call& call) {
  return {std::string(operation) + " " + quote(call.label), std::string(call.label), call.deadline,
          call.record};
}

Call HierarchyEngine::Named::step(Step step) const {
  const int steps_before = static_cast<int>(step);
  return {label, steps_before == 0 ? deadline : later(deadline, steps_before * kGrace), record};
}

Call HierarchyEngine::Named::step_inside(Step step) const {
  Call call = this->step(step);
  call.record = record.unwritten();
  return call;
}

Work HierarchyEngine::collective(std::string_view operation, const Call& call,
                                 std::function<void(const Named&)> body) {
  const Named what = named(operation, call);
  throw_if_broken(what);
  constexpr int kMostSteps = 3;
  return lane_->add({.deadline = later(call.deadline, kMostSteps * kGrace),
                     .run =
                         [this, what, body = std::move(body)] {
                           throw_if_broken(what);
                           run(what, [&] { body(what); });
                         },
                     .overdue = [this, what] { return overdue(what); }});
}

void HierarchyEngine::run(const Named& named, const std::function<void()>& body) {
  const ReasonWatch::UnderWay under_way(*watch_);
  try {
    body();
  } catch (const DeadlineError& error) {
    const std::string message = in_users_words(error.what(), named.label, named.text);
    const std::string hint = in_users_words(error.hint(), named.label, named.text);
    throw_if_broken(named);
    break_off({message, hint});
    throw DeadlineError(message, hint);
  } catch (const PeerError& error) {
    const std::string message = in_users_words(error.what(), named.label, named.text);
    throw_if_broken(named);
    break_off({message, error.hint()});
    throw PeerError(message, error.hint());
  } catch (const std::exception& error) {
    break_off({named.text + " failed: " + error.what(), ""});
    throw;
  }
}

void HierarchyEngine::throw_if_broken(const Named& named) {
  const std::lock_guard lock(mutex_);
  if (broken_) {
    throw PeerError(named.text + " on axis " + members_.axis + ": " + broken_->message,
                    broken_->hint);
  }
}

std::exception_ptr HierarchyEngine::overdue(const Named& named) {
  return overdue_error(named.text + " on axis " + members_.axis, named.deadline.timeout(),
                       named.record, [this](const Reason& reason) { break_off(reason); });
}

void HierarchyEngine::break_off(const Reason& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_ = reason;
  }
  board_.post(reason);
  for (const auto& part : {parts_.inside, parts_.between, parts_.all}) {
    if (part) part->abort(reason.text());
  }
}

void HierarchyEngine::abort(const std::string& reason) {
  break_off(Reason::from(reason));
}

at::Tensor HierarchyEngine::allocate(std::size_t bytes) {
  return parts_.inside ? parts_.inside->allocate(bytes) : GroupEngine::allocate(bytes);
}

}  // namespace troika::detail
