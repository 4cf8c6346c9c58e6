// The engine nccl: collectives on GPU memory, by NCCL, through a plug-in. Uneven reduce-scatter and
// all-gather are a reduction to, or a broadcast from, each member in turn; what is not reduced goes
// as messages that are posted together. Sums are as NCCL makes them: in an order of its own.
#include <troika/base/error.h>
#include <troika/base/plugin_folder.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/factory.h>
#include <troika/comm/failure/abort_store.h>
#include <troika/comm/failure/overdue.h>
#include <troika/comm/mpi/backoff.h>
#include <troika/comm/nccl/plugin.h>
#include <troika/comm/p2p/work_queue.h>
#include <troika/rendezvous/environment.h>

#include <ATen/ATen.h>

#include <mutex>
#include <optional>

namespace troika::detail {
namespace {

constexpr const char* kFile = "libtroika_nccl.so";

nccl::Plugin& load_nccl(const std::filesystem::path& path) {
  const auto entry = reinterpret_cast<nccl::PluginEntry>(load_plugin(path, nccl::kPluginEntry));
  nccl::Plugin* plugin = entry(nccl::kPluginVersion);
  if (plugin == nullptr) {
    throw UsageError(path.string() + " belongs to another version of troika",
                     "build and install both together");
  }
  return *plugin;
}

nccl::Dtype dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return nccl::Dtype::kFloat64;
    case at::kFloat:
      return nccl::Dtype::kFloat32;
    case at::kBFloat16:
      return nccl::Dtype::kBFloat16;
    case at::kHalf:
      return nccl::Dtype::kFloat16;
    case at::kLong:
      return nccl::Dtype::kInt64;
    case at::kInt:
      return nccl::Dtype::kInt32;
    default:
      return nccl::Dtype::kUint8;
  }
}

nccl::Op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return nccl::Op::kSum;
    case ReduceOp::kAverage:
      return nccl::Op::kAverage;
    case ReduceOp::kMax:
      return nccl::Op::kMax;
    case ReduceOp::kMin:
      break;
  }
  return nccl::Op::kMin;
}

using Requests = std::vector<std::unique_ptr<nccl::Request>>;

// The parts of a tensor, cut by counts of elements.
std::vector<at::Tensor> parts_of(const at::Tensor& whole, std::span<const std::int64_t> counts) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    parts.push_back(whole.view({-1}).narrow(0, begin, count));
    begin += count;
  }
  return parts;
}

void copy_unless_same(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() > 0 && to.data_ptr() != from.data_ptr()) to.copy_(from.view_as(to));
}

class NcclEngine final : public GroupEngine {
 public:
  NcclEngine(Members members, std::unique_ptr<nccl::Communicator> communicator, int device,
             AbortStore abort_store)
      : members_(std::move(members)),
        communicator_(std::move(communicator)),
        flag_(at::zeros({1}, at::device(at::Device(at::kCUDA, static_cast<char>(device))))),
        abort_store_(std::move(abort_store)),
        queue_(std::make_unique<WorkQueue>(WorkQueue::Order::kAsAdded)) {}
  ~NcclEngine() override { queue_.reset(); }

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  [[nodiscard]] bool accepts(at::DeviceType device) const override { return device == at::kCUDA; }

  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) override {
    return add("all_reduce", call, [=, this](Requests& requests) {
      requests.push_back(communicator_->all_reduce(tensor.data_ptr(), elements(tensor),
                                                   dtype_of(tensor.scalar_type()), op_of(op)));
    });
  }

  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      std::span<const std::int64_t> counts, ReduceOp op,
                      const Call& call) override {
    return add("reduce_scatter", call, [=, this, parts = parts_of(input, counts)](Requests& all) {
      for (int member = 0; member < members_.size(); ++member) {
        const at::Tensor& part = parts[static_cast<std::size_t>(member)];
        if (part.numel() == 0) continue;
        all.push_back(communicator_->reduce(output.data_ptr(), part.data_ptr(), elements(part),
                                            dtype_of(part.scalar_type()), op_of(op), member));
      }
    });
  }

  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> counts, const Call& call) override {
    return add("all_gather", call, [=, this, parts = parts_of(output, counts)](Requests& all) {
      copy_unless_same(parts[static_cast<std::size_t>(members_.index)], input);
      for (int member = 0; member < members_.size(); ++member) {
        const at::Tensor& part = parts[static_cast<std::size_t>(member)];
        if (part.numel() == 0) continue;
        all.push_back(communicator_->broadcast(part.data_ptr(), part.nbytes(), member));
      }
    });
  }

  Work all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                  const at::Tensor& input, std::span<const std::int64_t> input_counts,
                  const Call& call) override {
    return deliver("all_to_all", parts_of(output, output_counts), parts_of(input, input_counts),
                   call);
  }

  Work broadcast(const at::Tensor& tensor, int root, const Call& call) override {
    return add("broadcast", call, [=, this](Requests& requests) {
      if (tensor.numel() == 0) return;
      requests.push_back(communicator_->broadcast(tensor.data_ptr(), tensor.nbytes(), root));
    });
  }

  Work gather(const at::Tensor& output, const at::Tensor& input, int root,
              const Call& call) override {
    const auto size = static_cast<std::size_t>(members_.size());
    std::vector<at::Tensor> from(size), to(size);
    to[static_cast<std::size_t>(root)] = input;
    if (root == members_.index) {
      from = parts_of(output, std::vector<std::int64_t>(size, input.numel()));
    }
    return deliver("gather", std::move(from), std::move(to), call);
  }

  Work scatter(const at::Tensor& output, const at::Tensor& input, int root,
               const Call& call) override {
    const auto size = static_cast<std::size_t>(members_.size());
    std::vector<at::Tensor> from(size), to(size);
    from[static_cast<std::size_t>(root)] = output;
    if (root == members_.index) {
      to = parts_of(input, std::vector<std::int64_t>(size, output.numel()));
    }
    return deliver("scatter", std::move(from), std::move(to), call);
  }

  Work exchange(std::span<const Transfer> transfers, const Call& call) override {
    return add("exchange", call,
               [this, transfers = std::vector(transfers.begin(), transfers.end())](Requests& all) {
                 std::vector<nccl::Leg> legs;
                 for (const Transfer& each : transfers) {
                   const bool sends = each.direction == Transfer::Direction::kSend;
                   add_leg(legs, each.tensor, each.peer, sends);
                 }
                 if (!legs.empty()) all.push_back(communicator_->exchange(legs));
               });
  }

  Work barrier(const Call& call) override {
    return add("barrier", call, [this](Requests& requests) {
      requests.push_back(
          communicator_->all_reduce(flag_.data_ptr(), 1, nccl::Dtype::kFloat32, nccl::Op::kSum));
    });
  }

  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(mutex_);
      if (broken_) return;
      broken_ = AbortReason::from(reason);
    }
    abort_store_.post(AbortReason::from(reason));
    communicator_->abort();
  }

 private:
  static std::size_t elements(const at::Tensor& tensor) {
    return static_cast<std::size_t>(tensor.numel());
  }

  static void add_leg(std::vector<nccl::Leg>& legs, const at::Tensor& tensor, int peer,
                      bool sends) {
    if (!tensor.defined() || tensor.numel() == 0) return;
    using enum nccl::Leg::Direction;
    legs.push_back({sends ? kSend : kReceive, peer, tensor.data_ptr(), tensor.nbytes()});
  }

  // Parts by member; one that is undefined is nothing.
  Work deliver(std::string_view operation, std::vector<at::Tensor> from, std::vector<at::Tensor> to,
               const Call& call) {
    return add(operation, call,
               [this, from = std::move(from), to = std::move(to)](Requests& requests) {
                 std::vector<nccl::Leg> legs;
                 for (int peer = 0; peer < members_.size(); ++peer) {
                   const auto i = static_cast<std::size_t>(peer);
                   if (peer == members_.index) {
                     if (from[i].defined() && to[i].defined()) copy_unless_same(from[i], to[i]);
                     continue;
                   }
                   add_leg(legs, to[i], peer, true);
                   add_leg(legs, from[i], peer, false);
                 }
                 if (!legs.empty()) requests.push_back(communicator_->exchange(legs));
               });
  }

  Work add(std::string_view operation, const Call& call, std::function<void(Requests&)> start) {
    const std::string named = std::string(operation) + " " + quote(call.label);
    throw_if_broken(named);
    const Deadline deadline = call.deadline;
    return queue_->add(
        {.deadline = deadline,
         .run = [this, named, deadline, start = std::move(start)] { run(named, deadline, start); },
         .overdue =
             [this, named, deadline, record = call.record] {
               return overdue_error(named + " on axis " + members_.axis, deadline.timeout(), record,
                                    [this](const AbortReason& reason) { abort(reason.message); });
             }});
  }

  void run(const std::string& named, const Deadline& deadline,
           const std::function<void(Requests&)>& start) {
    throw_if_broken(named);
    try {
      Requests requests;
      start(requests);
      mpi::Backoff backoff;
      for (const auto& request : requests) {
        while (!request->test()) {
          backoff.pause();
          throw_if_broken(named);
          if (deadline.passed()) std::rethrow_exception(late(named, deadline));
        }
      }
    } catch (const nccl::NcclError& failure) {
      throw_if_broken(named);
      const std::string message = named + " on axis " + members_.axis + ": " + failure.what();
      abort(message);
      throw PeerError(message, "has a peer ended? Its last lines say why");
    }
  }

  std::exception_ptr late(const std::string& named, const Deadline& deadline) {
    const std::string message = named + " on axis " + members_.axis +
                                ": not all ranks have come in " +
                                format_duration(deadline.timeout().count());
    abort(message);
    return std::make_exception_ptr(DeadlineError(message));
  }

  void throw_if_broken(const std::string& named) {
    const std::lock_guard lock(mutex_);
    if (!broken_) return;
    throw PeerError(named + " on axis " + members_.axis + ": " + broken_->message, broken_->hint);
  }

  Members members_;
  std::unique_ptr<nccl::Communicator> communicator_;
  at::Tensor flag_;
  AbortStore abort_store_;
  std::mutex mutex_;
  std::optional<AbortReason> broken_;  // why; guarded by the mutex
  std::unique_ptr<WorkQueue> queue_;
};

}  // namespace

EngineFacts nccl_facts() {
  EngineFacts facts{.kind = EngineKind::kNccl,
                    .name = "nccl",
                    .built = false,
                    .usable = false,
                    .reason = "NCCL, between GPUs",
                    .carries_host_memory = false};
  const auto path = find_plugin(kFile);
  if (!path) {
    facts.reason +=
        ": there is no plug-in for it (libtroika_nccl.so), which is built where NCCL and "
        "the CUDA toolkit are found";
    return facts;
  }
  facts.built = true;
  try {
    const bool sees_devices = load_nccl(*path).devices() > 0;
    facts.usable = sees_devices && at::hasCUDA();
    if (!sees_devices) facts.reason += ": this process sees no GPU";
    if (sees_devices && !facts.usable) facts.reason += ": this LibTorch is without CUDA";
  } catch (const std::exception& error) {
    facts.reason += std::string(": ") + error.what();
  }
  return facts;
}

std::shared_ptr<GroupEngine> make_nccl_engine(const EngineContext& context,
                                              GroupRendezvous& rendezvous) {
  Members members = rendezvous.members();
  nccl::Plugin& plugin = load_nccl(*find_plugin(kFile));
  try {
    const int device =
        Environment::of_process().number("LOCAL_RANK").value_or(0) % plugin.devices();
    const std::string own =
        plugin.library() + "\n" + (context.index == 0 ? plugin.unique_id() : "");
    const std::string first = rendezvous.exchange("nccl", own).front();
    auto communicator =
        plugin.connect(first.substr(first.find('\n') + 1), context.index, members.size(), device);
    mpi::Backoff backoff;
    while (!communicator->connected()) {
      backoff.pause();
      if (!rendezvous.deadline().passed()) continue;
      throw RendezvousError("NCCL has not connected axis " + context.axis + " in time",
                            "set NCCL_DEBUG=INFO to read what NCCL has to say");
    }
    return std::make_shared<NcclEngine>(
        std::move(members), std::move(communicator), device,
        AbortStore(rendezvous.store().with_prefix("reason"), context.index));
  } catch (const nccl::NcclError& failure) {
    throw RendezvousError("NCCL cannot connect axis " + context.axis + ": " + failure.what());
  }
}

}  // namespace troika::detail
