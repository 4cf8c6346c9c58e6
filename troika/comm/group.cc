#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/comm/checks.h>
#include <troika/comm/failure/fault_injector.h>
#include <troika/comm/group.h>
#include <troika/comm/signature.h>
#include <troika/comm/staged/engine.h>
#include <troika/observe/recorder.h>
#include <troika/observe/trace.h>

#include <ATen/Functions.h>

#include <atomic>
#include <mutex>
#include <optional>

namespace troika {

using detail::ArgumentCheck;

namespace {

// What Group says of an operation to its observers, and to its engine.
struct OperationInput {
  std::string_view operation;
  std::uint64_t bytes = 0;  // that this member gives
  const at::Tensor* tensor = nullptr;
  std::uint64_t signature = 0;
  // An exchange is an operation of some members only.
  enum class Members { kAll, kSome } members = Members::kAll;
  at::Device device = at::kCPU;  // of the tensors, where `tensor` is null
};

}  // namespace

struct Group::Shared {
  GroupObservers observers;
  std::shared_ptr<GroupEngine> engine;  // goes first: it writes to the recorder
  // For tensors that the engine does not take: an engine of theirs, asked for once, else one that
  // takes them through the host. What the engine takes itself goes through that one then, too, in
  // one order on every member. Exchanges always go through the host. They have to run beside each
  // other, which an engine with one stream for all of them does not do, and some members only call
  // them, while all have to make an engine.
  MakeDeviceEngine make_device_engine;
  std::shared_ptr<GroupEngine> device_engine;  // set under `abort_mutex`
  MakeHostGroups make_host_groups;
  std::optional<HostGroups> host_groups;  // set under `abort_mutex`
  std::shared_ptr<StagedEngine> staged;
  std::mutex abort_mutex;
  std::optional<std::string> aborted;  // why
  int index = 0;
  std::string axis;
  std::uint64_t generation = 0;
  std::uint32_t identity = 0;
  std::atomic<std::uint64_t> input_bytes = 0;
  std::atomic<std::uint64_t> places = 0;

  // Starts an operation, and tells the observers of its start and its end.
  template <class Start>
  Work observed(const OperationInput& input, const Call& call, Start&& start) {
    if (observers.fault_injector) observers.fault_injector->enter(call.label, axis);
    add(input_bytes, input.bytes);
    const bool all = input.members == OperationInput::Members::kAll;
    const OperationFacts facts = facts_of(input, call, all ? add(places, 1) : 0);
    OperationEntry entry(observers.recorder.get(), facts);
    const OperationRecord record(observers.recorder.get(), entry.sequence(), facts);
    const bool traced = observers.trace && observers.trace->on();
    const std::int64_t started = traced ? observers.trace->now() : 0;
    const at::Device device = input.tensor ? input.tensor->device() : input.device;
    GroupEngine& carrier = carrier_of(device, input.members);
    DeviceEvent after;
    if (&carrier == device_engine.get()) after = DeviceEvent::record(device);
    if (!carrier.writes_entries()) entry.write();
    try {
      Work work = std::forward<Start>(start)(
          carrier, Call{call.label, call.deadline, record, &entry, after});
      entry.write();
      if (observers.recorder) end_record(work, entry.sequence());
      if (traced) {
        end_span(work, std::string(input.operation) + " " + std::string(call.label), started,
                 input.bytes);
      }
      return work;
    } catch (...) {
      if (observers.recorder) {
        entry.write();
        observers.recorder->fail(entry.sequence());
        observers.recorder->record_error(std::current_exception());
      }
      throw;
    }
  }

  // Any thread.
  void abort(const std::string& reason) {
    engine->abort(reason);
    std::shared_ptr<GroupEngine> of_device;
    HostGroups of_hosts;
    {
      const std::lock_guard lock(abort_mutex);
      if (!aborted) aborted = reason;
      of_device = device_engine;
      if (host_groups) of_hosts = *host_groups;
    }
    if (of_device) of_device->abort(reason);
    of_hosts.inside.abort(reason);
    of_hosts.between.abort(reason);
  }

  // Operations are started by one thread at a time, and so are groups made.
  [[nodiscard]] const HostGroups& by_host() {
    if (host_groups) return *host_groups;
    HostGroups made = make_host_groups ? make_host_groups() : HostGroups();
    const std::lock_guard lock(abort_mutex);
    host_groups = std::move(made);
    if (aborted) {
      host_groups->inside.abort(*aborted);
      host_groups->between.abort(*aborted);
    }
    return *host_groups;
  }

  [[nodiscard]] bool carries(at::Device device) {
    return engine->accepts(device.type()) || has_engine_of(device);
  }

  [[nodiscard]] std::string name_of_carrier(at::Device device) {
    const GroupEngine& carrier = carrier_of(device, OperationInput::Members::kAll);
    return std::string(carrier.name()) + (&carrier == staged.get() ? ", staged" : "");
  }

 private:
  // Operations are started by one thread at a time.
  GroupEngine& carrier_of(at::Device device, OperationInput::Members members) {
    const bool is_hosts = engine->accepts(device.type());
    if (is_hosts && !staged) return *engine;
    const bool is_alls = members == OperationInput::Members::kAll;
    if (!is_hosts && is_alls && has_engine_of(device)) return *device_engine;
    if (!staged) staged = std::make_shared<StagedEngine>(engine, index);
    return *staged;
  }
  bool has_engine_of(at::Device device) {
    if (make_device_engine) find_engine_of(device);
    return device_engine && device_engine->accepts(device.type());
  }
  // A group that was aborted has the engine that says so.
  void find_engine_of(at::Device device) {
    const MakeDeviceEngine make = std::exchange(make_device_engine, {});
    {
      const std::lock_guard lock(abort_mutex);
      if (aborted) return;
    }
    std::shared_ptr<GroupEngine> made = make(device);
    const std::lock_guard lock(abort_mutex);
    device_engine = std::move(made);
    if (aborted && device_engine) device_engine->abort(*aborted);
  }
  // Operations are started by one thread at a time; others may look.
  static std::uint64_t add(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
    const std::uint64_t sum = counter.load(std::memory_order_relaxed) + value;
    counter.store(sum, std::memory_order_relaxed);
    return sum;
  }
  OperationFacts facts_of(const OperationInput& input, const Call& call,
                          std::uint64_t place) const {
    OperationFacts facts{input.operation, axis, call.label, input.bytes};
    if (observers.recorder && input.tensor) {
      facts.elements = input.tensor->numel();
      facts.dtype = detail::name_of(input.tensor->scalar_type());
    }
    facts.place = place;
    facts.generation = generation;
    facts.group = identity;
    facts.signature = input.signature;
    return facts;
  }
  void end_record(const Work& work, std::uint64_t sequence) const {
    // The engine ends all operations before the recorder goes. Two words fit into a std::function.
    work.on_done([recorder = observers.recorder.get(), sequence](const std::exception_ptr& error) {
      if (error) {
        recorder->fail(sequence);
        recorder->record_error(error);
      } else {
        recorder->end(sequence);
      }
    });
  }
  void end_span(const Work& work, std::string name, std::int64_t started,
                std::uint64_t bytes) const {
    work.on_done([trace = observers.trace, name = std::move(name), started,
                  bytes](const std::exception_ptr&) {
      trace->add(Track::kCommunication, name, started, trace->now(), bytes);
    });
  }
};

namespace {

// Engines write through the memory of a tensor; autograd has no part in that. Borrows the tensor
// where it can.
class Plain {
 public:
  explicit Plain(const at::Tensor& tensor)
      : tensor_(tensor.defined() && tensor.requires_grad()
                    ? c10::MaybeOwned<at::Tensor>::owned(tensor.detach())
                    : c10::MaybeOwned<at::Tensor>::borrowed(tensor)) {}
  [[nodiscard]] const at::Tensor& operator*() const { return *tensor_; }

 private:
  c10::MaybeOwned<at::Tensor> tensor_;
};

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return !a.is_meta() && a.const_data_ptr() == b.const_data_ptr();
}

// What every operation that is not in place does in a group of one.
Work copy_to_self(const at::Tensor& output, const at::Tensor& input) {
  if (!same_memory(output, input)) (*Plain(output)).view({-1}).copy_((*Plain(input)).view({-1}));
  return {};
}

// Copies each transfer of a member with itself, in order, and returns the others.
std::vector<Transfer> without_own(std::span<const Transfer> transfers, int self,
                                  const ArgumentCheck& check) {
  std::vector<const at::Tensor*> sends;
  std::vector<const at::Tensor*> receives;
  std::vector<Transfer> others;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer != self) {
      others.push_back({transfer.direction, transfer.peer, *Plain(transfer.tensor)});
    } else if (transfer.direction == Transfer::Direction::kSend) {
      sends.push_back(&transfer.tensor);
    } else {
      receives.push_back(&transfer.tensor);
    }
  }
  if (sends.size() != receives.size()) {
    check.refuse(std::to_string(sends.size()) + " sends to this member itself, and " +
                 std::to_string(receives.size()) + " receives");
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    check.same_dtype(*receives[i], *sends[i]);
    check.elements(*receives[i], "tensor received from this member itself", sends[i]->numel());
    copy_to_self(*receives[i], *sends[i]);
  }
  return others;
}

std::int64_t sum_before(std::span<const std::int64_t> counts, int index) {
  std::int64_t sum = 0;
  for (int i = 0; i < index; ++i) sum += counts[static_cast<std::size_t>(i)];
  return sum;
}

at::Tensor memory_of_ones_own(std::size_t bytes) {
  try {
    return at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte);
  } catch (const c10::Error&) {
    throw StorageError("cannot reserve " + format_bytes(bytes) + " of memory",
                       "free some memory, or raise the limit of the container");
  }
}

}  // namespace

at::Tensor GroupEngine::allocate(std::size_t bytes) {
  return memory_of_ones_own(bytes);
}

Group::Group(std::string name, std::vector<int> ranks, int index, std::uint64_t generation,
             std::shared_ptr<GroupEngine> engine, std::uint32_t identity, GroupObservers observers,
             MakeDeviceEngine make_device_engine, MakeHostGroups make_host_groups)
    : name_(std::move(name)), ranks_(std::move(ranks)), index_(index), generation_(generation) {
  check(index_ >= 0 && index_ < size(), "the index of a group is one of its members");
  check((size() > 1) == (engine != nullptr), "a group of one has no engine, any other has one");
  if (!engine) return;
  shared_ = std::make_shared<Shared>();
  shared_->engine = std::move(engine);
  shared_->observers = std::move(observers);
  shared_->axis = name_;
  shared_->index = index_;
  shared_->make_device_engine = std::move(make_device_engine);
  shared_->make_host_groups = std::move(make_host_groups);
  shared_->generation = generation_;
  shared_->identity = identity;
}

std::string_view Group::engine_name() const {
  return shared_ ? shared_->engine->name() : "none";
}

std::string Group::engine_name(at::Device device) const {
  if (!shared_) return "none";
  return device.is_cpu() ? std::string(engine_name()) : shared_->name_of_carrier(device);
}

bool Group::carries(at::Device device) const {
  return !shared_ || shared_->carries(device);
}

std::uint64_t Group::input_bytes() const {
  return shared_ ? shared_->input_bytes.load(std::memory_order_relaxed) : 0;
}

const HostGroups& Group::by_host() const {
  static const HostGroups kAlone;
  return shared_ ? shared_->by_host() : kAlone;
}

Work Group::all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) const {
  const ArgumentCheck check("all_reduce", call, size(), engine());
  check.tensor(tensor, "tensor");
  check.reduction(tensor, op);
  if (!shared_) return {};
  const OperationInput input{"all_reduce", tensor.nbytes(), &tensor,
                             signature_of("all_reduce", tensor, static_cast<std::uint64_t>(op))};
  return shared_->observed(input, call, [&](GroupEngine& engine, const Call& recorded) {
    return engine.all_reduce(*Plain(tensor), op, recorded);
  });
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                           const Call& call, std::span<const std::int64_t> counts) const {
  const ArgumentCheck check("reduce_scatter", call, size(), engine());
  check.tensor(input, "input");
  check.tensor(output, "output");
  check.same_dtype(output, input);
  check.reduction(input, op);
  const auto parts = check.counts_or_equal(counts, input, "input");
  check.elements(output, "output", parts[static_cast<std::size_t>(index_)]);
  check.apart_or_own(output, input, sum_before(parts, index_));
  if (!shared_) return copy_to_self(output, input);
  const OperationInput facts{
      "reduce_scatter", input.nbytes(), &input,
      signature_of("reduce_scatter", input, parts, static_cast<std::uint64_t>(op))};
  return shared_->observed(facts, call, [&](GroupEngine& engine, const Call& recorded) {
    return engine.reduce_scatter(*Plain(output), *Plain(input), parts, op, recorded);
  });
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input, const Call& call,
                       std::span<const std::int64_t> counts) const {
  const ArgumentCheck check("all_gather", call, size(), engine());
  check.tensor(input, "input");
  check.tensor(output, "output");
  check.same_dtype(output, input);
  const auto parts = check.counts_or_equal(counts, output, "output");
  check.elements(input, "input", parts[static_cast<std::size_t>(index_)]);
  check.apart_or_own(input, output, sum_before(parts, index_));
  if (!shared_) return copy_to_self(output, input);
  const OperationInput facts{"all_gather", input.nbytes(), &input,
                             signature_of("all_gather", output, parts)};
  return shared_->observed(facts, call, [&](GroupEngine& engine, const Call& recorded) {
    return engine.all_gather(*Plain(output), *Plain(input), parts, recorded);
  });
}

Work Group::all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                       const at::Tensor& input, std::span<const std::int64_t> input_counts,
                       const Call& call) const {
  const ArgumentCheck check("all_to_all", call, size(), engine());
  check.tensor(input, "input");
  check.tensor(output, "output");
  check.same_dtype(output, input);
  check.elements(output, "output", check.counts(output_counts, "output counts"));
  check.elements(input, "input", check.counts(input_counts, "input counts"));
  const auto self = static_cast<std::size_t>(index_);
  if (output_counts[self] != input_counts[self]) {
    check.refuse("this member keeps " + std::to_string(input_counts[self]) +
                 " elements for itself, and expects " + std::to_string(output_counts[self]));
  }
  check.apart(output, input);
  if (!shared_) return copy_to_self(output, input);
  // Sizes may differ from member to member.
  const OperationInput facts{
      "all_to_all", input.nbytes(), &input,
      signature_of("all_to_all", static_cast<std::uint64_t>(input.scalar_type()))};
  return shared_->observed(facts, call, [&](GroupEngine& engine, const Call& recorded) {
    return engine.all_to_all(*Plain(output), output_counts, *Plain(input), input_counts, recorded);
  });
}

Work Group::broadcast(const at::Tensor& tensor, int root, const Call& call) const {
  const ArgumentCheck check("broadcast", call, size(), engine());
  check.tensor(tensor, "tensor");
  check.member(root, "root");
  if (!shared_) return {};
  const OperationInput facts{"broadcast", root == index_ ? tensor.nbytes() : 0, &tensor,
                             signature_of("broadcast", tensor, static_cast<std::uint64_t>(root))};
  return shared_->observed(facts, call, [&](GroupEngine& engine, const Call& recorded) {
    return engine.broadcast(*Plain(tensor), root, recorded);
  });
}

Work Group::gather(const at::Tensor& output, const at::Tensor& input, int root,
                   const Call& call) const {
  const ArgumentCheck check("gather", call, size(), engine());
  check.tensor(input, "input");
  check.member(root, "root");
  if (root == index_) {
    check.tensor(output, "output");
    check.same_dtype(output, input);
    check.elements(output, "output", input.numel() * size());
    check.apart_or_own(input, output, input.numel() * index_);
  }
  if (!shared_) return copy_to_self(output, input);
  const OperationInput facts{"gather", input.nbytes(), &input,
                             signature_of("gather", input, static_cast<std::uint64_t>(root))};
  return shared_->observed(facts, call, [&](GroupEngine& engine, const Call& recorded) {
    return engine.gather(*Plain(output), *Plain(input), root, recorded);
  });
}

Work Group::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                    const Call& call) const {
  const ArgumentCheck check("scatter", call, size(), engine());
  check.tensor(output, "output");
  check.member(root, "root");
  if (root == index_) {
    check.tensor(input, "input");
    check.same_dtype(output, input);
    check.elements(input, "input", output.numel() * size());
    check.apart_or_own(output, input, output.numel() * index_);
  }
  if (!shared_) return copy_to_self(output, input);
  const OperationInput facts{"scatter", root == index_ ? input.nbytes() : 0, &output,
                             signature_of("scatter", output, static_cast<std::uint64_t>(root))};
  return shared_->observed(facts, call, [&](GroupEngine& engine, const Call& recorded) {
    return engine.scatter(*Plain(output), *Plain(input), root, recorded);
  });
}

Work Group::exchange(std::span<const Transfer> transfers, const Call& call) const {
  const ArgumentCheck check("exchange", call, size(), engine());
  std::uint64_t sent = 0;
  for (const Transfer& transfer : transfers) {
    check.member(transfer.peer, "peer");
    check.tensor(transfer.tensor, "tensor");
    if (transfer.direction == Transfer::Direction::kSend) sent += transfer.tensor.nbytes();
  }
  check.apart(transfers);
  const std::vector<Transfer> others = without_own(transfers, index_, check);
  if (!shared_) return {};
  OperationInput facts{"exchange", sent, nullptr, 0, OperationInput::Members::kSome};
  if (!others.empty()) facts.device = others.front().tensor.device();
  return shared_->observed(facts, call, [&](GroupEngine& engine, const Call& recorded) {
    return engine.exchange(others, recorded);
  });
}

Work Group::barrier(const Call& call) const {
  if (!shared_) return {};
  const OperationInput facts{"barrier", 0, nullptr, signature_of("barrier", 0)};
  return shared_->observed(facts, call, [&](GroupEngine& engine, const Call& recorded) {
    return engine.barrier(recorded);
  });
}

void Group::abort(const std::string& reason) const {
  if (shared_) shared_->abort(reason);
}

at::Tensor Group::allocate(std::size_t bytes, at::Device device) const {
  if (!device.is_cpu()) {
    return at::zeros({static_cast<std::int64_t>(bytes)},
                     at::TensorOptions(at::kByte).device(device));
  }
  return shared_ ? shared_->engine->allocate(bytes) : memory_of_ones_own(bytes);
}

const GroupEngine* Group::engine() const {
  return shared_ ? shared_->engine.get() : nullptr;
}

}  // namespace troika
