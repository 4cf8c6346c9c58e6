// Compiled against the headers of NCCL and the CUDA runtime.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <troika/base/failure_timing.h>
#include <troika/comm/nccl/plugin.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

namespace troika::nccl {
namespace {

void must(cudaError_t code, const char* call) {
  if (code != cudaSuccess)
    throw NcclError(std::string("CUDA error: ") + cudaGetErrorString(code) + " (" + call + ")");
}

// A communicator that does not block says so of most calls.
void must(ncclResult_t code, const char* call) {
  if (code != ncclSuccess && code != ncclInProgress) {
    throw NcclError(std::string(call) + ": " + ncclGetErrorString(code));
  }
}

ncclDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return ncclFloat64;
    case Dtype::kFloat32:
      return ncclFloat32;
    case Dtype::kBFloat16:
      return ncclBfloat16;
    case Dtype::kFloat16:
      return ncclFloat16;
    case Dtype::kInt64:
      return ncclInt64;
    case Dtype::kInt32:
      return ncclInt32;
    case Dtype::kUint8:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t op_of(Op op) {
  switch (op) {
    case Op::kSum:
      return ncclSum;
    case Op::kAverage:
      return ncclAvg;
    case Op::kMax:
      return ncclMax;
    case Op::kMin:
      break;
  }
  return ncclMin;
}

// Versions are numbers: 22809 is 2.28.9.
constexpr int kMajor = 10000, kMinor = 100;

std::string text_of(int version) {
  return "NCCL " + std::to_string(version / kMajor) + "." +
         std::to_string(version % kMajor / kMinor) + "." + std::to_string(version % kMinor);
}

// A communicator that any thread may abort while another asks how it is.
class Handle {
 public:
  void connect(int size, const ncclUniqueId& id, int rank, ncclConfig_t& config) {
    must(ncclCommInitRankConfig(&communicator_, size, id, rank, &config), "ncclCommInitRankConfig");
  }
  // Whether NCCL has done what it was last told. Throws NcclError, also once aborted.
  [[nodiscard]] bool settled() {
    const std::lock_guard lock(mutex_);
    refuse_if_aborted();
    ncclResult_t state = ncclSuccess;
    must(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
    must(state, "NCCL");
    return state == ncclSuccess;
  }
  // `body` gets the communicator, and does not wait.
  template <class Body>
  void use(const Body& body) {
    const std::lock_guard lock(mutex_);
    refuse_if_aborted();
    body(communicator_);
  }
  void abort() noexcept {
    const std::lock_guard lock(mutex_);
    if (!aborted_ && communicator_ != nullptr) ncclCommAbort(communicator_);
    aborted_ = true;
  }
  // Sends what is still on its way to peers, unless that takes too long: an operation is over for
  // the GPU before the network has it.
  void flush() noexcept {
    const auto start = std::chrono::steady_clock::now();
    try {
      use([](ncclComm_t communicator) {
        must(ncclCommFinalize(communicator), "ncclCommFinalize");
      });
      while (!settled() && std::chrono::steady_clock::now() - start < failure_timing::kNcclFlush) {
        std::this_thread::yield();
      }
    } catch (
        const NcclError&) {  // nothing to send, or nobody to send to. NOLINT(bugprone-empty-catch)
    }
  }

 private:
  void refuse_if_aborted() const {
    if (aborted_) throw NcclError("the communicator was aborted");
  }

  std::mutex mutex_;
  ncclComm_t communicator_{};
  bool aborted_ = false;
};

// Started once NCCL is no longer in progress with the call; done once the stream has come to where
// it was then.
class StreamRequest final : public Request {
 public:
  StreamRequest(Handle& handle, int device, cudaStream_t stream)
      : handle_(handle), device_(device), stream_(stream) {}
  ~StreamRequest() override {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  bool started() override {
    if (event_ != nullptr) return true;
    if (!handle_.settled()) return false;
    must(cudaSetDevice(device_), "cudaSetDevice");
    // Only now: before NCCL is through with the call, its kernel may not be in the stream, and the
    // event would come before it.
    must(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    must(cudaEventRecord(event_, stream_), "cudaEventRecord");
    return true;
  }

  bool test() override {
    if (!started() || !handle_.settled()) return false;
    must(cudaSetDevice(device_), "cudaSetDevice");
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    must(code, "cudaEventQuery");
    return true;
  }

 private:
  Handle& handle_;
  int device_;
  cudaStream_t stream_;
  cudaEvent_t event_{};
};

class PluginCommunicator final : public Communicator {
 public:
  PluginCommunicator(const std::string& unique_id, int rank, int size, int device)
      : device_(device) {
    ncclUniqueId id{};
    if (unique_id.size() != sizeof(id)) throw NcclError("the unique id has the wrong size");
    std::memcpy(&id, unique_id.data(), sizeof(id));
    must(cudaSetDevice(device_), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    must(cudaEventCreateWithFlags(&before_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that deadlines hold
    handle_.connect(size, id, rank, config);
  }
  ~PluginCommunicator() override {
    handle_.flush();
    abort();  // frees what a clean end would wait for all members to free
    cudaEventDestroy(before_);
    cudaStreamDestroy(stream_);
  }

  bool connected() override { return handle_.settled(); }

  std::unique_ptr<Request> all_reduce(void* data, std::size_t elements, Dtype dtype,
                                      Op op) override {
    return start([&](ncclComm_t communicator) {
      must(ncclAllReduce(data, data, elements, type_of(dtype), op_of(op), communicator, stream_),
           "ncclAllReduce");
    });
  }

  std::unique_ptr<Request> reduce(void* output, const void* input, std::size_t elements,
                                  Dtype dtype, Op op, int root) override {
    return start([&](ncclComm_t communicator) {
      must(ncclReduce(input, output, elements, type_of(dtype), op_of(op), root, communicator,
                      stream_),
           "ncclReduce");
    });
  }

  std::unique_ptr<Request> broadcast(void* data, std::size_t bytes, int root) override {
    return start([&](ncclComm_t communicator) {
      must(ncclBroadcast(data, data, bytes, ncclUint8, root, communicator, stream_),
           "ncclBroadcast");
    });
  }

  std::unique_ptr<Request> exchange(std::span<const Leg> legs) override {
    return start([&](ncclComm_t communicator) {
      must(ncclGroupStart(), "ncclGroupStart");
      std::exception_ptr failure;
      try {
        post(legs, communicator);
      } catch (const NcclError&) {
        failure = std::current_exception();
      }
      // Called even where a leg has failed: a group that stays open would take the calls of all
      // later operations.
      const ncclResult_t ended = ncclGroupEnd();  // whatever came before
      if (failure) std::rethrow_exception(failure);
      must(ended, "ncclGroupEnd");
    });
  }

  void abort() noexcept override { handle_.abort(); }

 private:
  void post(std::span<const Leg> legs, ncclComm_t communicator) const {
    for (const Leg& leg : legs) {
      if (leg.direction == Leg::Direction::kSend) {
        must(ncclSend(leg.data, leg.bytes, ncclUint8, leg.peer, communicator, stream_), "ncclSend");
      } else {
        must(ncclRecv(leg.data, leg.bytes, ncclUint8, leg.peer, communicator, stream_), "ncclRecv");
      }
    }
  }

  // After what the default stream has been given, and before what it is given once this is done.
  template <class Body>
  std::unique_ptr<Request> start(const Body& body) {
    must(cudaSetDevice(device_), "cudaSetDevice");
    must(cudaEventRecord(before_, nullptr), "cudaEventRecord");
    // The stream does not block on the default stream by itself (cudaStreamNonBlocking): without
    // this event NCCL could read tensors that are still being computed.
    must(cudaStreamWaitEvent(stream_, before_, 0), "cudaStreamWaitEvent");
    handle_.use(body);
    return std::make_unique<StreamRequest>(handle_, device_, stream_);
  }

  int device_;
  cudaStream_t stream_{};
  cudaEvent_t before_{};
  Handle handle_;
};

class PluginOfNccl final : public NcclPlugin {
 public:
  [[nodiscard]] std::string library() const override {
    int version = 0;
    must(ncclGetVersion(&version), "ncclGetVersion");
    if (version < NCCL_VERSION_CODE || version / kMajor != NCCL_VERSION_CODE / kMajor) {
      throw NcclError(text_of(version) + " is here, and the plug-in was built for " +
                      text_of(NCCL_VERSION_CODE));
    }
    return text_of(version);
  }
  [[nodiscard]] int devices() const override {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
  }
  [[nodiscard]] std::string unique_id() const override {
    ncclUniqueId id{};
    must(ncclGetUniqueId(&id), "ncclGetUniqueId");
    return {reinterpret_cast<const char*>(&id), sizeof(id)};
  }
  std::unique_ptr<Communicator> connect(const std::string& unique_id, int rank, int size,
                                        int device) override {
    return std::make_unique<PluginCommunicator>(unique_id, rank, size, device);
  }
};

}  // namespace
}  // namespace troika::nccl

extern "C" __attribute__((visibility("default"))) troika::nccl::NcclPlugin* troika_nccl_plugin(
    int version) {
  static troika::nccl::PluginOfNccl plugin;
  return version == troika::nccl::kPluginVersion ? &plugin : nullptr;
}
