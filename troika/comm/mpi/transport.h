// Messages over MPI. MPI has no wait with a time-out, so a thread that waits for a message asks for
// it again and again, which drives MPI. It does so without a pause at first, then leaves the
// processor to others between. Where no thread waits, Progress drives MPI.
#pragma once

#include <troika/comm/mpi/plugin.h>
#include <troika/comm/mpi/progress.h>
#include <troika/comm/p2p/transport.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace troika::mpi {

class MpiTransport final : public Transport {
 public:
  // `group` tells this group from others that MPI may give the same communicator to, later or
  // before.
  MpiTransport(std::unique_ptr<Communicator> communicator, std::uint64_t group);
  ~MpiTransport() override;

  [[nodiscard]] int rank() const override { return communicator_->rank(); }
  [[nodiscard]] int size() const override { return communicator_->size(); }
  std::unique_ptr<Message> send(int peer, const at::Tensor& bytes, std::uint32_t tag) override;
  std::unique_ptr<Message> receive(int peer, const at::Tensor& bytes, std::uint32_t tag) override;
  void abort() noexcept override;

 private:
  class PendingMessage;
  // Waits until `request` is complete. Throws TransportError, naming `peer` unless another has
  // aborted.
  void wait(Request& request, int peer, const Deadline& deadline);
  // Keeps the memory of an operation that did not complete: MPI may still use it.
  void abandon(std::unique_ptr<Request> request, const at::Tensor& bytes);
  // Waits a while for the messages of abort() to leave.
  void flush_abort_messages();
  // Throws TransportError if this member or a peer has aborted.
  void throw_if_broken(int peer);

  std::shared_ptr<Progress> progress_;
  std::unique_ptr<Communicator> communicator_;
  int broken_tag_;  // of the message that says to a peer that this member has aborted
  std::atomic<bool> broken_ = false;
  std::vector<std::unique_ptr<Request>> abort_messages_;  // of abort(), that have not left yet
};

}  // namespace troika::mpi
