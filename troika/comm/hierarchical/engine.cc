#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/text.h>
#include <troika/comm/hierarchical/engine.h>

#include <ATen/ATen.h>

#include <utility>

namespace troika::detail {
namespace {

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

}  // namespace

// Two works as one.
class HierarchyEngine::CombinedWork final : public Work::State {
 public:
  CombinedWork(std::shared_ptr<HierarchyEngine> engine, OwnedContext context, Work near, Work far)
      : engine_(std::move(engine)),
        context_(std::move(context)),
        near_(std::move(near)),
        far_(std::move(far)) {}

  bool done() override { return near_.done() && far_.done(); }
  void wait() override {
    try {
      engine_->run_watched(context_.get(), [this] {
        near_.wait();
        far_.wait();
      });
    } catch (...) {
      context_.get().record.record_error(
          std::current_exception());  // on_done() may come later, or never
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
  OwnedContext context_;
  Work near_;
  Work far_;
};

HierarchyEngine::HierarchyEngine(std::string name, Members members, Hosts hosts, SubEngines engines,
                                 AbortStore abort_store)
    : BlockingEngine({.name = std::move(name),
                      .members = std::move(members),
                      // Those who wait inside a host hear by it of what happens between others.
                      .abort_store = std::move(abort_store)}),
      hosts_(std::move(hosts)),
      engines_(std::move(engines)) {}

HierarchyEngine::~HierarchyEngine() {
  stop();
}

// All messages start now, in the caller's thread: an exchange never waits for an earlier one.
Work HierarchyEngine::exchange(std::span<const Transfer> transfers, const Call& call) {
  const OwnedContext owned(OperationContext("exchange", call));
  const OperationContext context = owned.get();
  throw_if_failed(context);
  std::vector<Transfer> near, far;
  for (const Transfer& transfer : transfers) {
    if (hosts_.host_of(transfer.peer) == host()) {
      near.push_back({transfer.direction, hosts_.local_index_of(transfer.peer), transfer.tensor});
    } else {
      far.push_back(transfer);
    }
  }
  Work in_host, between_hosts;
  run_watched(context, [&] {
    if (!near.empty()) {
      const std::lock_guard lock(inside_mutex_);
      in_host = engines_.inside->exchange(near, call_inside(context, Step::kFirst));
    }
    if (!far.empty()) {
      between_hosts = engines_.all->exchange(far, call_of(context, Step::kBetween));
    }
  });
  return Work(std::make_shared<CombinedWork>(shared_from_this(), owned, in_host, between_hosts));
}

Call HierarchyEngine::call_of(const OperationContext& context, Step step) {
  const int steps_before = static_cast<int>(step);
  return {context.label,
          steps_before == 0 ? context.deadline
                            : later(context.deadline, steps_before * failure_timing::kHostStep),
          context.record};
}

Call HierarchyEngine::call_inside(const OperationContext& context, Step step) {
  Call call = call_of(context, step);
  call.record = context.record.unwritten();
  return call;
}

Deadline HierarchyEngine::end_of(const Deadline& deadline) const {
  constexpr int kMostSteps = 3;
  return later(deadline, kMostSteps * failure_timing::kHostStep);
}

void HierarchyEngine::translate(const OperationContext& context) {
  const std::string name = context.text(), label(context.label);
  try {
    throw;
  } catch (const DeadlineError& error) {
    const std::string message = in_users_words(error.what(), label, name);
    const std::string hint = in_users_words(error.hint(), label, name);
    throw_if_failed(context);
    fail(peer_failure(message, hint));
    throw DeadlineError(message, hint);
  } catch (const PeerError& error) {
    throw_if_failed(context);
    const std::string message = in_users_words(error.what(), label, name);
    fail(peer_failure(message, error.hint()));
    throw PeerError(message, error.hint());
  } catch (const std::exception&) {  // the base's. NOLINT(bugprone-empty-catch)
  }
}

void HierarchyEngine::break_connections(const Failure& reason) {
  for (const auto& engine : {engines_.inside, engines_.between, engines_.all}) {
    if (engine) engine->abort(encode(reason));
  }
}

at::Tensor HierarchyEngine::allocate(std::size_t bytes) {
  return engines_.inside ? engines_.inside->allocate(bytes) : GroupEngine::allocate(bytes);
}

}  // namespace troika::detail
