// What a plug-in for one MPI gives to the engine mpi: messages and communicators, without tensors.
// The plug-in is a shared library (plugin.cc, compiled once for each MPI that is installed) that
// links that MPI and nothing of troika or LibTorch; library.h picks and loads it.
//
// What waits is left to the caller: operations only start here, and test() asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace troika::mpi {

// Of this interface: a plug-in of another build is refused.
inline constexpr int kPluginVersion = 3;
inline constexpr const char* kPluginEntry = "troika_mpi_plugin";

// What MPI says when a call fails. Visible, since it crosses from one library to another.
class __attribute__((visibility("default"))) MpiError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A message of another size than is expected: "sends 12 B where 16 B are expected".
class __attribute__((visibility("default"))) WrongSize : public MpiError {
 public:
  using MpiError::MpiError;
};

// Which threads of this process may call MPI.
enum class Threads { kOneOnly, kOneAtATime, kAll };

// An operation under way.
class Request {
 public:
  // Before it is complete, this gives the operation up: its memory must stay for good.
  virtual ~Request() = default;
  // Whether it is complete; not called again then. Throws MpiError.
  [[nodiscard]] virtual bool test() = 0;
  // Takes a receive back: test() tells when its memory is free. It may stay under way for as long
  // as its sender takes, if the message has begun to come. Throws MpiError.
  virtual void cancel() = 0;
};

// All functions but the destructor are thread-safe if Threads::kAll. Throw MpiError.
class Communicator {
 public:
  // Frees the communicator, unless keep() was called. Collective.
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Any number of bytes, from or to memory that stays until the request is complete. Messages of a
  // pair with the same tag match in order; their sizes are equal. Tags are below kTags.
  static constexpr int kTags = 1 << 22;
  [[nodiscard]] virtual std::unique_ptr<Request> send(const void* bytes, std::size_t size, int peer,
                                                      int tag) = 0;
  [[nodiscard]] virtual std::unique_ptr<Request> receive(void* bytes, std::size_t size, int peer,
                                                         int tag) = 0;
  // The member that has sent a message with this tag which nobody has asked for, or -1.
  [[nodiscard]] virtual int sender_of(int tag) = 0;

  // `size` bytes of each member into `output`, by member.
  [[nodiscard]] virtual std::unique_ptr<Request> all_gather(void* output, const void* input,
                                                            std::size_t size) = 0;

  // Something went wrong: the end of the communicator, and of the process, must not wait for peers.
  // MPI then ends the whole job when this process ends.
  virtual void keep() noexcept = 0;
};

class Plugin {
 public:
  virtual ~Plugin() = default;
  // "Open MPI v4.1.4"
  [[nodiscard]] virtual std::string library() const = 0;
  [[nodiscard]] virtual bool started() const = 0;
  // Initialises MPI for all threads, unless the program has done so. Collective over all processes
  // of the job. What is initialised here is finalised when the process exits. Throws MpiError.
  virtual void start() = 0;
  [[nodiscard]] virtual Threads threads() const = 0;
  // Moves what is under way on any communicator. Whether MPI still runs. Thread-safe if
  // Threads::kAll.
  [[nodiscard]] virtual bool progress() noexcept = 0;
  // This process's position among all those of the job (MPI_COMM_WORLD), and how many there are.
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // A communicator of its own for some processes of the job, by position there. Collective among
  // them. Throws MpiError.
  [[nodiscard]] virtual std::unique_ptr<Communicator> communicator_of(
      std::span<const int> ranks) = 0;
  // A communicator of the program's, from its Fortran handle (MPI_Comm_c2f), to be used while the
  // program does not. Throws MpiError.
  [[nodiscard]] virtual std::unique_ptr<Communicator> of_program(int fortran_handle) = 0;
};

// What a plug-in exports under the name kPluginEntry: null if `version` is not its own.
using PluginEntry = Plugin* (*)(int version);

}  // namespace troika::mpi
