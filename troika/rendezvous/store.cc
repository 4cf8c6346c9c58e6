#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/milliseconds.h>
#include <troika/base/open_file_limit.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/rendezvous/loopback.h>
#include <troika/rendezvous/peer_names.h>
#include <troika/rendezvous/store_c10d.h>

#include <c10/util/Logging.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

C10_DECLARE_int(caffe2_log_level);

namespace troika {

struct Store::Handle {
  Endpoint endpoint;
  std::string prefix;                         // "" or ends without a slash
  c10::intrusive_ptr<c10d::TCPStore> server;  // keeps the background thread, where it is ours
  c10::intrusive_ptr<c10d::TCPStore> client;  // the connection
  c10::intrusive_ptr<c10d::Store> keys;       // the connection, behind the prefix
};

namespace {

// c10d writes its own account of every failed connection to stderr; the user reads our error. It
// also asks name servers for what it would write. Once, since any thread may open a store.
void silence_c10d() {
  [[maybe_unused]] static const bool silenced = [] {
    constexpr int kFatalOnly = 3;
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = kFatalOnly;
    detail::show_peers_by_address();
    return true;
  }();
}

std::string first_line(const char* text) {
  const std::string_view all = text;
  return std::string(all.substr(0, all.find('\n')));
}

[[noreturn]] void throw_lost(const Endpoint& endpoint, const c10::Error& error) {
  throw PeerError("the rendezvous store at " + endpoint.describe() + " is gone (" +
                      first_line(error.what_without_backtrace()) + ")",
                  "the launcher or rank 0 has ended (its last lines say why), or the network to it "
                  "is cut");
}

// Runs `action`, and turns a lost connection into a PeerError.
template <class Action>
auto guarded(const Endpoint& endpoint, Action&& action) {
  try {
    return action();
  } catch (const c10::Error& error) {
    throw_lost(endpoint, error);
  }
}

[[noreturn]] void throw_not_a_rendezvous(const Endpoint& endpoint, const Deadline& deadline,
                                         const std::string& reason) {
  throw RendezvousError(
      "no rendezvous at " + endpoint.describe() + " after " +
          format_fixed(deadline.waited().count(), 1) + " s (something listens there, but " +
          reason + ")",
      "is that the port of another program, or may the one that keeps the store open no "
      "more files (`ulimit -n`)?");
}

// c10d waits without a deadline for the answer to its first message, so this sends the same message
// first: the magic number, then a ping, to which a store answers with the ping's number.
void check_store_answers(const Endpoint& endpoint, const Deadline& deadline) {
  using c10d::detail::QueryType;
  const UniqueFd fd = connect_to(endpoint, deadline);
  const std::uint32_t magic = c10d::detail::validationMagicNumber, number = 0x6b696f72;
  std::array<char, 2 + 2 * sizeof(std::uint32_t)> message{};
  message[0] = static_cast<char>(QueryType::VALIDATE);
  std::memcpy(&message[1], &magic, sizeof(magic));
  message[1 + sizeof(magic)] = static_cast<char>(QueryType::PING);
  std::memcpy(&message[2 + sizeof(magic)], &number, sizeof(number));
  (void)send(fd.get(), message.data(), message.size(), MSG_NOSIGNAL);

  std::uint32_t answer = 0;
  pollfd readable{fd.get(), POLLIN, 0};
  if (poll(&readable, 1, poll_milliseconds(deadline.left())) <= 0) {
    throw_not_a_rendezvous(endpoint, deadline, "it does not answer");
  }
  if (recv(fd.get(), &answer, sizeof(answer), 0) != sizeof(answer) || answer != number) {
    throw_not_a_rendezvous(endpoint, deadline, "it does not speak the rendezvous protocol");
  }
}

// 0 where it is no TCP connection.
std::uint16_t port_of_peer(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return 0;
  if (peer.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(peer).sin_port);
  }
  if (peer.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(peer).sin6_port);
  }
  return 0;
}

// c10d waits for answers without a deadline: for ever, where the host of the store has lost its
// power or the network is cut. So the kernel asks after the other side, and ends a connection that
// nothing has come from for so long. c10d keeps its socket to itself: it is found by where it
// leads, with those of other clients of the store.
void notice_silence(std::uint16_t port) {
  using namespace failure_timing;
  constexpr auto kSilence = kStoreIdle + kStoreProbe * kStoreProbes;
  constexpr auto kMilliseconds = static_cast<unsigned>(std::chrono::milliseconds(kSilence).count());
  std::error_code error;
  for (std::filesystem::directory_iterator each("/proc/self/fd", error), end; !error && each != end;
       each.increment(error)) {
    const std::string name = each->path().filename();  // digits
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (port_of_peer(fd) != port) continue;
    const auto set = [fd](int level, int option, const auto& value) {
      (void)setsockopt(fd, level, option, &value, sizeof(value));
    };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(kStoreIdle.count()));
    set(IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(kStoreProbe.count()));
    set(IPPROTO_TCP, TCP_KEEPCNT, kStoreProbes);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, kMilliseconds);  // of what it has not acknowledged
  }
}

c10::intrusive_ptr<c10d::TCPStore> try_open_client(const Endpoint& endpoint,
                                                   const Deadline& deadline) {
  check_store_answers(endpoint, deadline);
  c10d::TCPStoreOptions options;
  options.port = endpoint.port;
  options.waitWorkers = false;
  // c10d passes it to poll(2), as an int.
  options.timeout = std::chrono::milliseconds(poll_milliseconds(deadline.left()));
  try {
    auto client = c10::make_intrusive<c10d::TCPStore>(endpoint.host, options);
    notice_silence(endpoint.port);
    return client;
  } catch (const c10::Error& error) {
    throw_not_a_rendezvous(endpoint, deadline, first_line(error.what_without_backtrace()));
  }
}

// A store that is just being closed lets one connect and then says nothing: the next may be about
// to take its place.
c10::intrusive_ptr<c10d::TCPStore> open_client(const Endpoint& endpoint, const Deadline& deadline) {
  std::optional<Deadline> closing;
  for (;;) {
    try {
      return try_open_client(endpoint, deadline);
    } catch (const RendezvousError&) {
      if (!closing)
        closing = Deadline::in(std::min(failure_timing::kStoreClosing, deadline.left()));
      if (closing->passed()) throw;
    }
    poll(nullptr, 0, poll_milliseconds(failure_timing::kStoreClosingPoll));
  }
}

}  // namespace

Store::Store(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

Store Store::host(std::uint16_t port, Reach reach) {
  return host(bind_port(port, reach));
}

Store Store::host(ListeningSocket listening) {
  silence_c10d();
  check_loopback();  // this process is a client of its own store
  constexpr std::uint64_t kNeeded = 16, kWanted = 64;
  reserve_open_files(kNeeded, kWanted, "a process that keeps the rendezvous store");
  c10d::TCPStoreOptions options;
  options.timeout = failure_timing::kStoreStart;
  options.port = listening.port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listening.fd.get();
  auto handle = std::make_unique<Handle>();
  handle->endpoint = {"127.0.0.1", listening.port};
  handle->client = guarded(handle->endpoint, [&] {
    auto store = c10::make_intrusive<c10d::TCPStore>(handle->endpoint.host, options);
    (void)listening.fd.release();  // the server closes it
    return store;
  });
  handle->server = handle->client;
  handle->keys = handle->client;
  return Store(std::move(handle));
}

Store Store::connect(const Endpoint& endpoint, const Deadline& deadline) {
  silence_c10d();
  constexpr std::uint64_t kNeeded = 4, kWanted = 16;
  reserve_open_files(kNeeded, kWanted, "a rank");
  if (names_loopback(endpoint.host)) check_loopback();
  auto handle = std::make_unique<Handle>();
  handle->endpoint = endpoint;
  handle->client = open_client(endpoint, deadline);
  handle->keys = handle->client;
  return Store(std::move(handle));
}

Store Store::clone() const {
  return clone(failure_timing::kStoreReconnect);
}

Store Store::clone(Seconds timeout) const {
  auto copy = std::make_unique<Handle>(*handle_);
  copy->client = open_client(handle_->endpoint, Deadline::in(timeout));
  copy->keys = copy->client;
  if (!copy->prefix.empty()) {
    copy->keys = c10::make_intrusive<c10d::PrefixStore>(copy->prefix, copy->client);
  }
  return Store(std::move(copy));
}

Store Store::share() const {
  return Store(std::make_unique<Handle>(*handle_));
}

Store Store::with_prefix(std::string_view prefix) const {
  auto copy = std::make_unique<Handle>(*handle_);
  if (!copy->prefix.empty()) copy->prefix += "/";
  copy->prefix += prefix;
  copy->keys = c10::make_intrusive<c10d::PrefixStore>(copy->prefix, copy->client);
  return Store(std::move(copy));
}

const Endpoint& Store::endpoint() const {
  return handle_->endpoint;
}

void Store::set(const std::string& key, std::string_view value) {
  guarded(handle_->endpoint,
          [&] { handle_->keys->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
}

std::string Store::get(const std::string& key, const Deadline& deadline) {
  if (!wait({key}, deadline)) {
    throw RendezvousError("nobody has set " + quote(key) + " at " + handle_->endpoint.describe() +
                          " after " + format_fixed(deadline.timeout().count(), 1) + " s");
  }
  return get_all({key}).front();
}

bool Store::wait(const std::vector<std::string>& keys, const Deadline& deadline) {
  do {
    try {
      handle_->keys->wait(keys, std::chrono::milliseconds(poll_milliseconds(deadline.left())));
      return true;
      // To c10d a network error is another class. Its clock runs on while the job is stopped.
      // NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const c10::DistStoreError&) {
    } catch (const c10::Error& error) {
      throw_lost(handle_->endpoint, error);
    }
  } while (!deadline.passed());
  return false;
}

std::vector<std::string> Store::get_all(const std::vector<std::string>& keys) {
  return guarded(handle_->endpoint, [&] {
    std::vector<std::string> values;
    values.reserve(keys.size());
    for (const auto& value : handle_->keys->multiGet(keys)) {
      values.emplace_back(value.begin(), value.end());
    }
    return values;
  });
}

std::int64_t Store::add(const std::string& key, std::int64_t amount) {
  return guarded(handle_->endpoint, [&] { return handle_->keys->add(key, amount); });
}

bool Store::is_set(const std::string& key) {
  return guarded(handle_->endpoint, [&] { return handle_->keys->check({key}); });
}

c10::intrusive_ptr<c10d::Store> c10d_store(const Store& store) {
  return store.handle().keys;
}

}  // namespace troika
