// The only file that sees Gloo's headers. Those of the system's package are older than the Gloo
// inside LibTorch, so nothing but the constructor of c10d's process group, its options and the
// functions that make a device is used of them; messages go through c10d's virtual functions.
#include <troika/base/error.h>
#include <troika/base/milliseconds.h>
#include <troika/base/sigpipe_guard.h>
#include <troika/comm/gloo/transport.h>
#include <troika/rendezvous/store_c10d.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <mutex>
#include <set>
#include <stdexcept>
#include <string_view>

namespace troika {
namespace {

// Of messages that nobody sends.
constexpr int kNobodyTag = 0;

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

[[noreturn]] void throw_broken(int peer, const std::exception& error) {
  throw TransportError(TransportError::Kind::kBroken, peer, first_line(error.what()));
}

// What has started and is not over, so that it can be ended where Gloo does not: a receive that is
// posted just when its connection ends waits for it without end.
class PendingWorks {
 public:
  void add(c10d::Work* work) {
    const std::lock_guard lock(mutex_);
    // A message that starts while end_all() runs would never end: it is aborted here.
    if (ended_) work->abort();
    works_.insert(work);
  }
  void remove(c10d::Work* work) {
    const std::lock_guard lock(mutex_);
    works_.erase(work);
  }
  void end_all() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    for (c10d::Work* work : works_) work->abort();
  }

 private:
  std::mutex mutex_;
  std::set<c10d::Work*> works_;
  bool ended_ = false;
};

class GlooMessage final : public Transport::Message {
 public:
  GlooMessage(c10::intrusive_ptr<c10d::Work> work, int peer, PendingWorks& pending_works)
      : work_(std::move(work)), peer_(peer), pending_works_(pending_works) {
    pending_works_.add(work_.get());
  }
  ~GlooMessage() override { pending_works_.remove(work_.get()); }

  void wait(const Deadline& deadline) override {
    try {
      // A wait that ended before its deadline would be taken for a lost connection.
      if (!work_->wait(whole_milliseconds(deadline.left()))) {
        throw std::runtime_error("this member has aborted");
      }
    } catch (const std::exception& error) {
      if (!deadline.passed()) throw_broken(peer_, error);
      throw TransportError(TransportError::Kind::kDeadline, peer_, first_line(error.what()));
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  int peer_;
  PendingWorks& pending_works_;
};

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(c10::intrusive_ptr<c10d::Backend> backend)
      : backend_(std::move(backend)) {}

  [[nodiscard]] int rank() const override { return backend_->getRank(); }
  [[nodiscard]] int size() const override { return backend_->getSize(); }

  std::unique_ptr<Message> send(int peer, const at::Tensor& bytes, std::uint32_t tag) override {
    return start(peer, bytes, [&](std::vector<at::Tensor>& tensors) {
      return backend_->send(tensors, peer, static_cast<int>(tag));
    });
  }

  std::unique_ptr<Message> receive(int peer, const at::Tensor& bytes, std::uint32_t tag) override {
    return start(peer, bytes, [&](std::vector<at::Tensor>& tensors) {
      return backend_->recv(tensors, peer, static_cast<int>(tag));
    });
  }

  // A receive that times out makes Gloo close all connections and end all messages under way. The
  // first one to a peer whose connection is not closed yet does.
  void abort() noexcept override {
    for (int distance = 1; distance < size(); ++distance) {
      try {
        const int peer = (rank() + distance) % size();
        receive(peer, at::empty({1}, at::kByte), kNobodyTag)->wait(Deadline::in(Seconds(0)));
        // It always ends with an exception: that is how it closes them.
        // NOLINTNEXTLINE(bugprone-empty-catch)
      } catch (const std::exception&) {
      }
    }
    pending_works_.end_all();
  }

 private:
  template <class Start>
  std::unique_ptr<Message> start(int peer, const at::Tensor& bytes, const Start& start) {
    std::vector<at::Tensor> tensors = {bytes};
    const SigpipeGuard guard;
    try {
      const std::lock_guard lock(mutex_);  // c10d counts messages without one
      return std::make_unique<GlooMessage>(start(tensors), peer, pending_works_);
    } catch (const std::exception& error) {
      throw_broken(peer, error);
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::mutex mutex_;
  PendingWorks pending_works_;
};

std::shared_ptr<gloo::transport::Device> make_device(const GlooDevice& device) {
  try {
    return device.by == GlooDevice::By::kInterface
               ? c10d::ProcessGroupGloo::createDeviceForInterface(device.name)
               : c10d::ProcessGroupGloo::createDeviceForHostname(device.name);
  } catch (const std::exception& error) {
    throw RendezvousError("gloo cannot use '" + device.name + "': " + first_line(error.what()),
                          "set TROIKA_INTERFACE to the network interface to use; troika doctor "
                          "lists them");
  }
}

}  // namespace

std::unique_ptr<Transport> connect_gloo(const Store& store, const GlooDevice& device, int rank,
                                        int size, const Deadline& deadline) {
  auto options = c10d::ProcessGroupGloo::Options::create(whole_milliseconds(deadline.left()));
  options->threads = 1;  // for c10d's own collectives, which we do not use
  // Gloo writes without a word about SIGPIPE, here and in the threads that it starts here.
  const SigpipeGuard guard;
  options->devices.push_back(make_device(device));
  try {
    return std::make_unique<GlooTransport>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(c10d_store(store), rank, size, options));
  } catch (const std::exception& error) {
    throw RendezvousError("gloo could not connect the ranks through '" + device.name +
                              "': " + first_line(error.what()),
                          "set TROIKA_INTERFACE on every host to an interface that reaches the "
                          "others; troika doctor lists them");
  }
}

}  // namespace troika
