#include <netinet/in.h>
#include <resolv.h>
#include <sys/socket.h>
#include <troika/base/failure_timing.h>
#include <troika/rendezvous/endpoint.h>
#include <troika/rendezvous/peer_names.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace troika::detail {
namespace {

// Leaves this thread without name servers while it lives: look-ups in files go on, others fail at
// once.
class NoNameServers {
 public:
  NoNameServers() : initialized_((_res.options & RES_INIT) != 0 || res_init() == 0) {
    if (!initialized_) return;
    count_ = _res.nscount;
    _res.nscount = 0;
  }
  ~NoNameServers() {
    if (initialized_) _res.nscount = count_;
  }
  NoNameServers(const NoNameServers&) = delete;
  NoNameServers& operator=(const NoNameServers&) = delete;

 private:
  bool initialized_;
  int count_ = 0;
};

// 127.83.21.9, of this host alone: no file gives a name for it.
constexpr std::uint32_t kNameless = 0x7f531509;
constexpr const char* kNamelessText = "127.83.21.9";

// Returns a socket that listens there, and its port, or an invalid one where it cannot.
ListeningSocket listen_nameless() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kNameless);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || bind(fd.get(), any, size) != 0 || listen(fd.get(), 1) != 0 ||
      getsockname(fd.get(), any, &size) != 0) {
    return {};
  }
  return {std::move(fd), ntohs(address.sin_port)};
}

// c10d looks up the address of each peer when it makes a socket, before it connects. After the
// first look-up that fails it shows addresses in place of names (pytorch/pytorch#159596). So one
// is made to fail, by a store that this process opens for itself and closes at once. It answers:
// where a connection is refused, c10d waits for up to a second before it tries the next address.
void fail_a_look_up() {
  ListeningSocket listening = listen_nameless();
  if (!listening.fd.valid()) return;
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.port = listening.port;
  options.masterListenFd = listening.fd.get();
  options.timeout = failure_timing::kStoreStart;
  const NoNameServers none;
  try {
    const auto store = c10::make_intrusive<c10d::TCPStore>(kNamelessText, options);
    (void)listening.fd.release();  // the store closes it
    // Names are looked up, then. What is wrong with connections the next one says.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const c10::Error&) {
  }
}

}  // namespace

void show_peers_by_address() {
  [[maybe_unused]] static const bool done = [] {
    fail_a_look_up();
    return true;
  }();
}

}  // namespace troika::detail
