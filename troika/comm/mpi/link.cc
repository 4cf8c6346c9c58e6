#include <troika/comm/messages.h>
#include <troika/comm/mpi/link.h>
#include <troika/comm/mpi/patience.h>

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

// Whether nothing will be written to a receive's memory any more.
bool taken_back(Request& request) noexcept {
  constexpr Seconds kEnough{0.1};
  try {
    request.cancel();
    Patience patience;
    const Deadline deadline = Deadline::in(kEnough);
    while (!request.test()) {
      if (deadline.passed()) return false;
      patience.pause();
    }
    return true;
  } catch (const Failure&) {
    return false;
  }
}

}  // namespace

class MpiLink::UnderWay final : public Link::Message {
 public:
  enum class Direction { kSend, kReceive };
  UnderWay(MpiLink& link, std::unique_ptr<Request> request, Direction direction, at::Tensor bytes,
           int peer)
      : link_(link),
        request_(std::move(request)),
        direction_(direction),
        bytes_(std::move(bytes)),
        peer_(peer) {}
  ~UnderWay() override {
    if (done_ || (direction_ == Direction::kReceive && taken_back(*request_))) return;
    link_.give_up(std::move(request_), bytes_);
  }

  void wait(const Deadline& deadline) override {
    link_.wait(*request_, peer_, deadline);
    done_ = true;
  }

 private:
  MpiLink& link_;
  std::unique_ptr<Request> request_;
  Direction direction_;
  at::Tensor bytes_;
  int peer_;
  bool done_ = false;
};

MpiLink::MpiLink(std::unique_ptr<Communicator> communicator, std::uint64_t group)
    : progress_(Progress::of_process()),
      communicator_(std::move(communicator)),
      broken_tag_(broken_tag(group)) {}

// What members of a broken group have sent stays in MPI, which would hand it to the next group that
// it gives this communicator to.
MpiLink::~MpiLink() {
  try {
    if (communicator_->sender_of(broken_tag_) >= 0) communicator_->keep();
    if (broken_) tell_peers();
  } catch (const Failure&) {
    communicator_->keep();
  }
}

// MPI sends only while it is asked something, and may have kept a word back while its peer was
// stopped.
void MpiLink::tell_peers() {
  constexpr Seconds kEnough{1};
  const Deadline deadline = Deadline::in(kEnough);
  Patience patience;
  for (auto& word : words_) {
    while (!word->test() && !deadline.passed()) patience.pause();
  }
}

std::unique_ptr<Link::Message> MpiLink::send(int peer, const at::Tensor& bytes, std::uint32_t tag) {
  throw_if_broken(peer);
  try {
    auto request = communicator_->send(detail::data(bytes), bytes.nbytes(), peer, short_tag(tag));
    progress_->started();
    return std::make_unique<UnderWay>(*this, std::move(request), UnderWay::Direction::kSend, bytes,
                                      peer);
  } catch (const Failure& failure) {
    throw LinkError(LinkError::Reason::kBroken, peer, failure.what());
  }
}

std::unique_ptr<Link::Message> MpiLink::receive(int peer, const at::Tensor& bytes,
                                                std::uint32_t tag) {
  throw_if_broken(peer);
  try {
    auto request =
        communicator_->receive(detail::data(bytes), bytes.nbytes(), peer, short_tag(tag));
    progress_->started();
    return std::make_unique<UnderWay>(*this, std::move(request), UnderWay::Direction::kReceive,
                                      bytes, peer);
  } catch (const Failure& failure) {
    throw LinkError(LinkError::Reason::kBroken, peer, failure.what());
  }
}

void MpiLink::wait(Request& request, int peer, const Deadline& deadline) {
  Patience patience;
  try {
    while (!request.test()) {
      progress_->driven();
      patience.pause();
      if (!patience.look()) continue;
      throw_if_broken(peer);
      if (deadline.passed()) {
        throw LinkError(LinkError::Reason::kDeadline, peer, "the deadline has passed");
      }
    }
  } catch (const WrongSize& wrong) {
    throw LinkError(LinkError::Reason::kWrongSize, peer, wrong.what());
  } catch (const Failure& failure) {
    throw LinkError(LinkError::Reason::kBroken, peer, failure.what());
  }
}

void MpiLink::throw_if_broken(int peer) {
  if (broken_) throw LinkError(LinkError::Reason::kBroken, peer, "this member has broken off");
  const int by = communicator_->sender_of(broken_tag_);
  if (by >= 0) throw LinkError(LinkError::Reason::kBroken, by, "that member has broken off");
}

void MpiLink::break_off() noexcept {
  if (broken_.exchange(true)) return;
  communicator_->keep();
  static const std::byte kWord{};  // stays for words that never leave
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      // Not waited for: nearly always so small a message leaves at once.
      auto word = communicator_->send(&kWord, 1, peer, broken_tag_);
      if (!word->test()) words_.push_back(std::move(word));
      // A peer that cannot be told has other ways to find out.
      // NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const std::exception&) {
    }
  }
}

// MPI cannot be made to leave the memory of a send, or of a receive that has begun, alone: it is
// never freed.
void MpiLink::give_up(std::unique_ptr<Request> request, const at::Tensor& bytes) {
  communicator_->keep();
  // NOLINTNEXTLINE(bugprone-unused-return-value)
  (void)request.release();
  (void)new at::Tensor(bytes);
}

}  // namespace troika::mpi
