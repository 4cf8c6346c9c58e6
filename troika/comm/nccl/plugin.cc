// Compiled against the headers of NCCL and the CUDA runtime.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <troika/comm/nccl/plugin.h>

#include <atomic>
#include <cstring>

namespace troika::nccl {
namespace {

void must(cudaError_t code, const char* call) {
  if (code != cudaSuccess) throw Failure(std::string(call) + ": " + cudaGetErrorString(code));
}

// A communicator that does not block says so of most calls.
void must(ncclResult_t code, const char* call) {
  if (code != ncclSuccess && code != ncclInProgress) {
    throw Failure(std::string(call) + ": " + ncclGetErrorString(code));
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

// Done once the stream has come to where it was when this was made.
class StreamRequest final : public Request {
 public:
  StreamRequest(ncclComm_t communicator, int device, cudaStream_t stream)
      : communicator_(communicator), device_(device) {
    must(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    must(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  ~StreamRequest() override { cudaEventDestroy(event_); }

  bool test() override {
    must(cudaSetDevice(device_), "cudaSetDevice");
    ncclResult_t state = ncclSuccess;
    must(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
    must(state, "NCCL");
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    must(code, "cudaEventQuery");
    return true;
  }

 private:
  ncclComm_t communicator_;
  int device_;
  cudaEvent_t event_{};
};

class PluginCommunicator final : public Communicator {
 public:
  PluginCommunicator(const std::string& unique_id, int rank, int size, int device)
      : device_(device) {
    ncclUniqueId id{};
    if (unique_id.size() != sizeof(id)) throw Failure("the unique id has the wrong size");
    std::memcpy(&id, unique_id.data(), sizeof(id));
    must(cudaSetDevice(device_), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    must(cudaEventCreateWithFlags(&before_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that deadlines hold
    must(ncclCommInitRankConfig(&communicator_, size, id, rank, &config), "ncclCommInitRankConfig");
  }
  ~PluginCommunicator() override {
    abort();  // what is under way has been waited for; a clean end would wait for all members
    cudaEventDestroy(before_);
    cudaStreamDestroy(stream_);
  }

  bool connected() override {
    ncclResult_t state = ncclSuccess;
    must(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
    must(state, "NCCL");
    return state == ncclSuccess;
  }

  std::unique_ptr<Request> all_reduce(void* data, std::size_t elements, Dtype dtype,
                                      Op op) override {
    return start([&] {
      must(ncclAllReduce(data, data, elements, type_of(dtype), op_of(op), communicator_, stream_),
           "ncclAllReduce");
    });
  }

  std::unique_ptr<Request> reduce(void* output, const void* input, std::size_t elements,
                                  Dtype dtype, Op op, int root) override {
    return start([&] {
      must(ncclReduce(input, output, elements, type_of(dtype), op_of(op), root, communicator_,
                      stream_),
           "ncclReduce");
    });
  }

  std::unique_ptr<Request> broadcast(void* data, std::size_t bytes, int root) override {
    return start([&] {
      must(ncclBroadcast(data, data, bytes, ncclUint8, root, communicator_, stream_),
           "ncclBroadcast");
    });
  }

  std::unique_ptr<Request> exchange(std::span<const Leg> legs) override {
    return start([&] {
      must(ncclGroupStart(), "ncclGroupStart");
      for (const Leg& leg : legs) {
        if (leg.direction == Leg::Direction::kSend) {
          must(ncclSend(leg.data, leg.bytes, ncclUint8, leg.peer, communicator_, stream_),
               "ncclSend");
        } else {
          must(ncclRecv(leg.data, leg.bytes, ncclUint8, leg.peer, communicator_, stream_),
               "ncclRecv");
        }
      }
      must(ncclGroupEnd(), "ncclGroupEnd");
    });
  }

  void abort() noexcept override {
    if (!aborted_.exchange(true)) ncclCommAbort(communicator_);
  }

 private:
  // After what the default stream has been given, and before what it is given once this is done.
  template <class Body>
  std::unique_ptr<Request> start(const Body& body) {
    if (aborted_) throw Failure("the communicator was aborted");
    must(cudaSetDevice(device_), "cudaSetDevice");
    must(cudaEventRecord(before_, nullptr), "cudaEventRecord");
    must(cudaStreamWaitEvent(stream_, before_, 0), "cudaStreamWaitEvent");
    body();
    while (!connected()) {
      // The call has been accepted once NCCL is no longer in progress with it: microseconds.
    }
    return std::make_unique<StreamRequest>(communicator_, device_, stream_);
  }

  int device_;
  cudaStream_t stream_{};
  cudaEvent_t before_{};
  ncclComm_t communicator_{};
  std::atomic<bool> aborted_ = false;
};

class PluginOfNccl final : public Plugin {
 public:
  [[nodiscard]] std::string library() const override {
    int version = 0;
    must(ncclGetVersion(&version), "ncclGetVersion");
    if (version != NCCL_VERSION_CODE) {
      throw Failure("NCCL is version " + std::to_string(version) + ", and its header is of " +
                    std::to_string(NCCL_VERSION_CODE));
    }
    return "NCCL " + std::to_string(NCCL_MAJOR) + "." + std::to_string(NCCL_MINOR) + "." +
           std::to_string(NCCL_PATCH);
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

extern "C" __attribute__((visibility("default"))) troika::nccl::Plugin* troika_nccl_plugin(
    int version) {
  static troika::nccl::PluginOfNccl plugin;
  return version == troika::nccl::kPluginVersion ? &plugin : nullptr;
}
