// The interface between the engine nccl and the plug-in for NCCL: collectives on GPU memory,
// without tensors. The plug-in is a shared library (plugin.cc) that links NCCL and the CUDA runtime
// and nothing of troika or LibTorch. It is built where both are found and loaded where there is a
// GPU.
//
// The caller does the waiting: operations only start here, and test() asks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace troika::nccl {

// The version of this interface: a plug-in of another build is refused.
inline constexpr int kPluginVersion = 2;
inline constexpr const char* kPluginEntry = "troika_nccl_plugin";

// The error of an NCCL or CUDA call that fails. Visible, since it crosses from one library to
// another.
class __attribute__((visibility("default"))) NcclError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Dtype { kFloat64, kFloat32, kBFloat16, kFloat16, kInt64, kInt32, kUint8 };
enum class Op { kSum, kAverage, kMax, kMin };

// An operation under way.
class Request {
 public:
  virtual ~Request() = default;
  // Returns whether NCCL has accepted the operation, which may take connections to peers. No other
  // may be started before. Throws NcclError.
  [[nodiscard]] virtual bool started() = 0;
  // Returns whether the operation is complete: its memory may then be used, by the default stream
  // of the device too. Throws NcclError.
  [[nodiscard]] virtual bool test() = 0;
};

// A part of an exchange.
struct Leg {
  enum class Direction { kSend, kReceive } direction;
  int peer;
  void* data;
  std::size_t bytes;
};

// A communicator of NCCL. Operations start after the work that the default stream of the device has
// been given. They start in the order of calls, which is the same on all members. One thread at a
// time, but for abort(). Throws NcclError.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // Returns whether all members are connected. Wait for this first.
  [[nodiscard]] virtual bool connected() = 0;
  [[nodiscard]] virtual std::unique_ptr<Request> all_reduce(void* data, std::size_t elements,
                                                            Dtype dtype, Op op) = 0;
  // Reduces to member `root`, in `output` there.
  [[nodiscard]] virtual std::unique_ptr<Request> reduce(void* output, const void* input,
                                                        std::size_t elements, Dtype dtype, Op op,
                                                        int root) = 0;
  [[nodiscard]] virtual std::unique_ptr<Request> broadcast(void* data, std::size_t bytes,
                                                           int root) = 0;
  [[nodiscard]] virtual std::unique_ptr<Request> exchange(std::span<const Leg> legs) = 0;
  // Ends the operations under way. Any thread. A communicator that was not aborted gives what it
  // has sent to the network before it goes.
  virtual void abort() noexcept = 0;
};

class NcclPlugin {
 public:
  virtual ~NcclPlugin() = default;
  // Returns "NCCL 2.28.9".
  [[nodiscard]] virtual std::string library() const = 0;
  // Returns the number of GPUs that this process sees; 0 where there is no driver.
  [[nodiscard]] virtual int devices() const = 0;
  // Makes the id of a communicator. One member calls this and sends the id to the others.
  [[nodiscard]] virtual std::string unique_id() const = 0;
  // Starts to connect. No two members may use the same GPU.
  [[nodiscard]] virtual std::unique_ptr<Communicator> connect(const std::string& unique_id,
                                                              int rank, int size, int device) = 0;
};

// The function that the plug-in exports under the name kPluginEntry. Returns null if `version` is
// not its own.
using PluginEntry = NcclPlugin* (*)(int version);

}  // namespace troika::nccl
