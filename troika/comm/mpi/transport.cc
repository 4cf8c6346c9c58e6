#include <troika/base/failure_timing.h>
#include <troika/comm/mpi/backoff.h>
#include <troika/comm/mpi/transport.h>
#include <troika/comm/p2p/pending_transfers.h>

#include <exception>

namespace troika::mpi {
namespace {

// Message engines use tags up to 2^31; MPICH has 2^28 of them. Of those of collectives (bit 30) the
// trace of what they are (from bit 21 on) and the lower bits of their number (to bit 20) stay.
int short_tag(std::uint32_t tag) {
  constexpr std::uint32_t kNumberBits = 11;
  constexpr std::uint32_t kTraceBits = 9;
  if (tag < (1U << kNumberBits)) return static_cast<int>(tag);
  const std::uint32_t number = tag & ((1U << kNumberBits) - 1);
  const std::uint32_t trace = (tag >> 21) & ((1U << kTraceBits) - 1);
  return static_cast<int>(1U << (kNumberBits + kTraceBits) | trace << kNumberBits | number);
}

// Above all short tags.
int broken_tag(std::uint64_t group) {
  constexpr std::uint64_t kFirst = 1U << 21;
  static_assert(2 * kFirst <= Communicator::kTags);
  return static_cast<int>(kFirst | group % kFirst);
}

TransportError error_of(const MpiError& failure, int peer) {
  const bool ended = dynamic_cast<const MpiEnded*>(&failure) != nullptr;
  return {ended ? TransportError::Kind::kEnded : TransportError::Kind::kBroken, peer,
          failure.what()};
}

// Whether nothing will be written to a receive's memory any more.
bool is_cancelled(Request& request) noexcept {
  try {
    request.cancel();
    Backoff backoff;
    const Deadline deadline = Deadline::in(failure_timing::kMpiCancel);
    while (!request.test()) {
      if (deadline.passed()) return false;
      backoff.pause();
    }
    return true;
  } catch (const MpiError&) {
    return false;
  }
}

}  // namespace

class MpiTransport::PendingMessage final : public Transport::Message {
 public:
  enum class Direction { kSend, kReceive };
  PendingMessage(MpiTransport& transport, std::unique_ptr<Request> request, Direction direction,
                 at::Tensor bytes, int peer)
      : transport_(transport),
        request_(std::move(request)),
        direction_(direction),
        bytes_(std::move(bytes)),
        peer_(peer) {}
  ~PendingMessage() override {
    if (done_ || (direction_ == Direction::kReceive && is_cancelled(*request_))) return;
    transport_.abandon(std::move(request_), bytes_);
  }

  void wait(const Deadline& deadline) override {
    transport_.wait(*request_, peer_, deadline);
    done_ = true;
  }

 private:
  MpiTransport& transport_;
  std::unique_ptr<Request> request_;
  Direction direction_;
  at::Tensor bytes_;
  int peer_;
  bool done_ = false;
};

MpiTransport::MpiTransport(std::unique_ptr<Communicator> communicator, std::uint64_t group)
    : progress_(Progress::of_process()),
      communicator_(std::move(communicator)),
      broken_tag_(broken_tag(group)) {}

// What members of a broken group have sent stays in MPI, which would hand it to the next group that
// it gives this communicator to.
MpiTransport::~MpiTransport() {
  try {
    if (communicator_->sender_of(broken_tag_) >= 0) communicator_->keep();
    if (broken_) flush_abort_messages();
  } catch (const MpiError&) {
    communicator_->keep();
  }
}

// MPI sends only while it is asked something, and may have kept a message back while its peer was
// stopped.
void MpiTransport::flush_abort_messages() {
  const Deadline deadline = Deadline::in(failure_timing::kMpiAbortMessages);
  Backoff backoff;
  for (auto& message : abort_messages_) {
    while (!message->test() && !deadline.passed()) backoff.pause();
  }
}

std::unique_ptr<Transport::Message> MpiTransport::send(int peer, const at::Tensor& bytes,
                                                       std::uint32_t tag) {
  throw_if_broken(peer);
  try {
    auto request = communicator_->send(detail::data(bytes), bytes.nbytes(), peer, short_tag(tag));
    progress_->started();
    return std::make_unique<PendingMessage>(*this, std::move(request),
                                            PendingMessage::Direction::kSend, bytes, peer);
  } catch (const MpiError& failure) {
    throw error_of(failure, peer);
  }
}

std::unique_ptr<Transport::Message> MpiTransport::receive(int peer, const at::Tensor& bytes,
                                                          std::uint32_t tag) {
  throw_if_broken(peer);
  try {
    auto request =
        communicator_->receive(detail::data(bytes), bytes.nbytes(), peer, short_tag(tag));
    progress_->started();
    return std::make_unique<PendingMessage>(*this, std::move(request),
                                            PendingMessage::Direction::kReceive, bytes, peer);
  } catch (const MpiError& failure) {
    throw error_of(failure, peer);
  }
}

void MpiTransport::wait(Request& request, int peer, const Deadline& deadline) {
  Backoff backoff;
  try {
    while (!request.test()) {
      progress_->driven();
      backoff.pause();
      if (!backoff.should_check()) continue;
      throw_if_broken(peer);
      if (deadline.passed()) {
        throw TransportError(TransportError::Kind::kDeadline, peer, "the deadline has passed");
      }
    }
  } catch (const WrongSize& wrong) {
    throw TransportError(TransportError::Kind::kWrongSize, peer, wrong.what());
  } catch (const MpiError& failure) {
    throw error_of(failure, peer);
  }
}

void MpiTransport::throw_if_broken(int peer) {
  if (broken_) throw TransportError(TransportError::Kind::kBroken, peer, "this member has aborted");
  int by = -1;
  try {
    by = communicator_->sender_of(broken_tag_);
  } catch (const MpiError& failure) {
    throw error_of(failure, peer);
  }
  if (by >= 0) throw TransportError(TransportError::Kind::kBroken, by, "that member has aborted");
}

void MpiTransport::abort() noexcept {
  // Set before the messages go out: the threads that wait see it at their next look, and start
  // nothing new.
  if (broken_.exchange(true)) return;
  communicator_->keep();
  static const std::byte kAbortMessage{};  // stays for messages that never leave
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      // Not waited for: nearly always so small a message leaves at once.
      auto message = communicator_->send(&kAbortMessage, 1, peer, broken_tag_);
      if (!message->test()) abort_messages_.push_back(std::move(message));
      // A peer that cannot be told has other ways to find out.
      // NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const std::exception&) {
    }
  }
}

// MPI cannot be made to leave the memory of a send, or of a receive that has begun, alone: it is
// never freed.
void MpiTransport::abandon(std::unique_ptr<Request> request, const at::Tensor& bytes) {
  communicator_->keep();
  // NOLINTNEXTLINE(bugprone-unused-return-value)
  (void)request.release();
  (void)new at::Tensor(bytes);
}

}  // namespace troika::mpi
