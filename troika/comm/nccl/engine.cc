// The engine nccl: collectives on GPU memory, by NCCL, through a plug-in. Uneven reduce-scatter and
// all-gather are a reduction to, or a broadcast from, each member in turn; what is not reduced goes
// as messages that are posted together. Sums are as NCCL makes them: in an order of its own.
#include <troika/base/error.h>
#include <troika/base/plugin_folder.h>
#include <troika/comm/blocking_engine.h>
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/kinds.h>
#include <troika/comm/mpi/backoff.h>
#include <troika/comm/nccl/plugin.h>
#include <troika/device/choose.h>
#include <troika/device/plugin.h>

#include <ATen/ATen.h>

namespace troika {
namespace {

constexpr const char* kFile = "libtroika_nccl.so";

nccl::NcclPlugin& load_nccl(const std::filesystem::path& path) {
  const auto entry =
      reinterpret_cast<nccl::PluginEntry>(detail::load_plugin(path, nccl::kPluginEntry));
  nccl::NcclPlugin* plugin = entry(nccl::kPluginVersion);
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

// Operations start after what the caller's stream had come to. The plug-in starts them behind the
// device's default stream, which is current while a body runs, in whichever thread, and waits for
// the caller's.
class NcclEngine final : public BlockingEngine {
 public:
  NcclEngine(Members members, std::unique_ptr<nccl::Communicator> communicator, int device,
             AbortStore abort_store, SnapshotCollector snapshot_collector)
      : BlockingEngine(
            {"nccl", std::move(members), std::move(snapshot_collector), std::move(abort_store)}),
        communicator_(std::move(communicator)),
        default_stream_(DeviceStream::default_of(device_of(device))),
        flag_(at::zeros({1}, at::device(device_of(device)))) {}
  ~NcclEngine() override { stop(); }

  [[nodiscard]] bool accepts(at::DeviceType device) const override { return device == at::kCUDA; }

  Work exchange(std::span<const Transfer>, const Call&) override {
    throw InternalError("internal error: exchanges of GPU memory go through the host");
  }

 private:
  void run_all_reduce(const at::Tensor& tensor, ReduceOp op,
                      const OperationContext& context) override {
    const DeviceStream::Scope on_default(default_stream_);
    context.after.block_stream();
    await(communicator_->all_reduce(tensor.data_ptr(), elements(tensor),
                                    dtype_of(tensor.scalar_type()), op_of(op)),
          context);
  }

  void run_reduce_scatter(const at::Tensor& output, const at::Tensor& input, Counts counts,
                          ReduceOp op, const OperationContext& context) override {
    const DeviceStream::Scope on_default(default_stream_);
    context.after.block_stream();
    const std::vector<at::Tensor> parts = parts_of(input, counts);
    Requests requests;
    for (int member = 0; member < members().size(); ++member) {
      const at::Tensor& part = parts[static_cast<std::size_t>(member)];
      if (part.numel() == 0) continue;
      requests.push_back(communicator_->reduce(output.data_ptr(), part.data_ptr(), elements(part),
                                               dtype_of(part.scalar_type()), op_of(op), member));
      await_start(*requests.back(), context);
    }
    for (const auto& request : requests) await(request, context);
  }

  void run_all_gather(const at::Tensor& output, const at::Tensor& input, Counts counts,
                      const OperationContext& context) override {
    const DeviceStream::Scope on_default(default_stream_);
    context.after.block_stream();
    const std::vector<at::Tensor> parts = parts_of(output, counts);
    copy_unless_same(parts[static_cast<std::size_t>(index())], input);
    Requests requests;
    for (int member = 0; member < members().size(); ++member) {
      const at::Tensor& part = parts[static_cast<std::size_t>(member)];
      if (part.numel() == 0) continue;
      requests.push_back(communicator_->broadcast(part.data_ptr(), part.nbytes(), member));
      await_start(*requests.back(), context);
    }
    for (const auto& request : requests) await(request, context);
  }

  void run_all_to_all(const at::Tensor& output, Counts output_counts, const at::Tensor& input,
                      Counts input_counts, const OperationContext& context) override {
    const DeviceStream::Scope on_default(default_stream_);
    context.after.block_stream();
    deliver(parts_of(output, output_counts), parts_of(input, input_counts), context);
  }

  void run_broadcast(const at::Tensor& tensor, int root, const OperationContext& context) override {
    const DeviceStream::Scope on_default(default_stream_);
    context.after.block_stream();
    if (tensor.numel() == 0) return;
    await(communicator_->broadcast(tensor.data_ptr(), tensor.nbytes(), root), context);
  }

  void run_gather(const at::Tensor& output, const at::Tensor& input, int root,
                  const OperationContext& context) override {
    const DeviceStream::Scope on_default(default_stream_);
    context.after.block_stream();
    const auto size = static_cast<std::size_t>(members().size());
    std::vector<at::Tensor> from(size), to(size);
    to[static_cast<std::size_t>(root)] = input;
    if (root == index()) from = parts_of(output, std::vector<std::int64_t>(size, input.numel()));
    deliver(from, to, context);
  }

  void run_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                   const OperationContext& context) override {
    const DeviceStream::Scope on_default(default_stream_);
    context.after.block_stream();
    const auto size = static_cast<std::size_t>(members().size());
    std::vector<at::Tensor> from(size), to(size);
    from[static_cast<std::size_t>(root)] = output;
    if (root == index()) to = parts_of(input, std::vector<std::int64_t>(size, output.numel()));
    deliver(from, to, context);
  }

  void run_barrier(const OperationContext& context) override {
    const DeviceStream::Scope on_default(default_stream_);
    context.after.block_stream();
    await(communicator_->all_reduce(flag_.data_ptr(), 1, nccl::Dtype::kFloat32, nccl::Op::kSum),
          context);
  }

  static at::Device device_of(int index) {
    return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
  }

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
  void deliver(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to,
               const OperationContext& context) {
    std::vector<nccl::Leg> legs;
    for (int peer = 0; peer < members().size(); ++peer) {
      const auto i = static_cast<std::size_t>(peer);
      if (peer == index()) {
        if (from[i].defined() && to[i].defined()) copy_unless_same(from[i], to[i]);
        continue;
      }
      add_leg(legs, to[i], peer, true);
      add_leg(legs, from[i], peer, false);
    }
    exchange_legs(legs, context);
  }

  void exchange_legs(const std::vector<nccl::Leg>& legs, const OperationContext& context) {
    if (!legs.empty()) await(communicator_->exchange(legs), context);
  }

  // The first use of a connection makes it, which takes the peers: their absence is found here.
  void await_start(nccl::Request& request, const OperationContext& context) {
    poll([&] { return request.started(); }, context);
  }

  void await(const std::unique_ptr<nccl::Request>& request, const OperationContext& context) {
    poll([&] { return request->test(); }, context);
  }

  template <class Ready>
  void poll(const Ready& ready, const OperationContext& context) {
    mpi::Backoff backoff;
    while (!ready()) {
      backoff.pause();
      throw_if_failed(context);
      if (context.deadline.passed()) std::rethrow_exception(late(context, {}));
    }
  }

  void translate(const OperationContext& context) override {
    try {
      throw;
    } catch (const nccl::NcclError& error) {
      throw_if_failed(context);
      throw failed_with(context, error.what(), "has a peer ended? Its last lines say why");
    } catch (const std::exception&) {  // the base's. NOLINT(bugprone-empty-catch)
    }
  }

  void break_connections(const Failure&) override { communicator_->abort(); }

  std::unique_ptr<nccl::Communicator> communicator_;
  DeviceStream default_stream_;
  at::Tensor flag_;
};

EngineAvailability nccl_availability() {
  EngineAvailability available{.built = false, .usable = false, .reason = "NCCL, between GPUs"};
  const auto path = detail::find_plugin(kFile);
  if (!path) {
    available.reason +=
        ": there is no plug-in for it (libtroika_nccl.so), which is built where NCCL and "
        "the CUDA toolkit are found";
    return available;
  }
  available.built = true;
  try {
    const nccl::NcclPlugin& plugin = load_nccl(*path);
    available.version = plugin.library();
    const bool sees_devices = plugin.devices() > 0;
    available.usable = sees_devices && device_count(at::kCUDA) > 0;
    if (!sees_devices) available.reason += ": this process sees no GPU";
    if (sees_devices && !available.usable) available.reason += ": " + load_device_plugin().reason;
  } catch (const std::exception& error) {
    available.reason += std::string(": ") + error.what();
  }
  return available;
}

std::shared_ptr<GroupEngine> make_nccl_engine(const EngineContext& context,
                                              detail::GroupRendezvous* at) {
  detail::GroupRendezvous& rendezvous = *at;
  Members members = rendezvous.members();
  nccl::NcclPlugin& plugin = load_nccl(*detail::find_plugin(kFile));
  try {
    const auto device = static_cast<int>(static_cast<unsigned char>(context.device.index()));
    const std::string own = context.index == 0 ? plugin.unique_id() : "";
    const std::string id = rendezvous.exchange("nccl", own).front();
    auto communicator = plugin.connect(id, context.index, members.size(), device);
    mpi::Backoff backoff;
    while (!communicator->connected()) {
      backoff.pause();
      if (!rendezvous.deadline().passed()) continue;
      throw RendezvousError("NCCL has not connected axis " + context.axis + " in time",
                            "set NCCL_DEBUG=INFO to read what NCCL has to say");
    }
    return std::make_shared<NcclEngine>(
        std::move(members), std::move(communicator), device,
        AbortStore(rendezvous.store().with_prefix("reason"), context.index),
        SnapshotCollector(context.options.store->share()));
  } catch (const nccl::NcclError& failure) {
    throw RendezvousError("NCCL cannot connect axis " + context.axis + ": " + failure.what());
  }
}

}  // namespace

const EngineKind& nccl_kind() {
  static constexpr EngineKind kKind{.name = "nccl",
                                    .traits = {.memory = at::kCUDA, .reduces_in_order = false},
                                    .availability = nccl_availability,
                                    .make = make_nccl_engine};
  return kKind;
}

}  // namespace troika
