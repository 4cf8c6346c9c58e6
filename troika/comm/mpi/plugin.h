// The interface between the engine mpi and a plug-in for one MPI: messages and communicators,
// without tensors. The plug-in is a shared library (plugin.cc, compiled once for each MPI that is
// installed) that links that MPI and nothing of troika or LibTorch; library.h picks and loads it.
//
// The caller does the waiting: operations only start here, and test() asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace troika::mpi {

// The version of this interface: a plug-in of another build is refused.
inline constexpr int kPluginVersion = 5;
inline constexpr const char* kPluginEntry = "troika_mpi_plugin";

// The error of an MPI call that fails. Visible, since it crosses from one library to another.
class __attribute__((visibility("default"))) MpiError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call after the program has ended MPI.
class __attribute__((visibility("default"))) MpiEnded : public MpiError {
 public:
  using MpiError::MpiError;
};

// A message of another size than is expected: "sends 12 B where 16 B are expected".
class __attribute__((visibility("default"))) WrongSize : public MpiError {
 public:
  using MpiError::MpiError;
};

// The threads of this process that may call MPI.
enum class Threads { kOneOnly, kOneAtATime, kAll };

// An operation under way.
class Request {
 public:
  // Abandons the operation if it is not complete: its memory must then stay for good.
  virtual ~Request() = default;
  // Returns whether the operation is complete; it must not be called again then. Throws MpiError.
  [[nodiscard]] virtual bool test() = 0;
  // Cancels a receive: test() says when its memory is free. The receive may stay under way for as
  // long as its sender takes, if the message has begun to arrive. Throws MpiError.
  virtual void cancel() = 0;
};

// A communicator of MPI. All functions but the destructor are thread-safe if Threads::kAll. They
// throw MpiError.
class Communicator {
 public:
  // Frees the communicator, unless keep() was called. Collective.
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Start a message of any number of bytes, from or to memory that stays until the request is
  // complete. Messages of a pair with the same tag match in order; their sizes are equal. Tags are
  // below kTags.
  static constexpr int kTags = 1 << 22;
  [[nodiscard]] virtual std::unique_ptr<Request> send(const void* bytes, std::size_t size, int peer,
                                                      int tag) = 0;
  [[nodiscard]] virtual std::unique_ptr<Request> receive(void* bytes, std::size_t size, int peer,
                                                         int tag) = 0;
  // Returns the member that has sent a message with this tag which no receive has taken, or -1.
  [[nodiscard]] virtual int sender_of(int tag) = 0;

  // Gathers `size` bytes of each member into `output`, by member.
  [[nodiscard]] virtual std::unique_ptr<Request> all_gather(void* output, const void* input,
                                                            std::size_t size) = 0;

  // Starts to tell all members that this one is here: returns a request for each member, by rank,
  // that is complete once that member has called this, whatever the others do. Each member sends
  // each other a byte. Their memory is in the requests.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Request>> roll_call() = 0;

  // Keeps the communicator after an error: neither its end nor that of the process must wait for
  // peers. MPI then ends the whole job when this process ends.
  virtual void keep() noexcept = 0;
};

class MpiPlugin {
 public:
  virtual ~MpiPlugin() = default;
  // Returns "Open MPI v4.1.4".
  [[nodiscard]] virtual std::string library() const = 0;
  [[nodiscard]] virtual bool started() const = 0;
  // Initialises MPI for all threads, unless the program has done so. Collective over all processes
  // of the job. What is initialised here is finalised when the process exits. Throws MpiError.
  virtual void start() = 0;
  [[nodiscard]] virtual Threads threads() const = 0;
  // Moves the messages under way on all communicators. Returns whether MPI still runs. Thread-safe
  // if Threads::kAll.
  [[nodiscard]] virtual bool progress() noexcept = 0;
  // Return this process's position among all those of the job (MPI_COMM_WORLD), and how many there
  // are.
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Makes a communicator for some processes of the job, by position there. Collective among them.
  // Throws MpiError.
  [[nodiscard]] virtual std::unique_ptr<Communicator> communicator_of(
      std::span<const int> ranks) = 0;
  // Returns a communicator of the program, from its Fortran handle (MPI_Comm_c2f). Use it only
  // while the program does not. Throws MpiError.
  [[nodiscard]] virtual std::unique_ptr<Communicator> of_program(int fortran_handle) = 0;
};

// The function that a plug-in exports under the name kPluginEntry. Returns null if `version` is not
// its own.
using PluginEntry = MpiPlugin* (*)(int version);

}  // namespace troika::mpi
