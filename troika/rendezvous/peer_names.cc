#include <netinet/in.h>
#include <resolv.h>
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

// c10d looks up the address of each peer when it makes a socket, before it connects. After the
// first look-up that fails it shows addresses in place of names (pytorch/pytorch#159596). So one
// is made to fail: of an address of this host that no file has a name for, and where no process
// listens.
void fail_a_look_up() {
  c10d::TCPStoreOptions options;
  options.port = 1;
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(1);
  const NoNameServers none;
  try {
    const auto store = c10::make_intrusive<c10d::TCPStore>("127.83.21.9", options);
    // It is refused.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
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
