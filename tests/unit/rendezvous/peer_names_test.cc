// No name server is asked who connects to a store: this program's getnameinfo() counts.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <troika/rendezvous/store.h>

#include <atomic>
#include <chrono>
#include <vector>

namespace {

std::atomic<int> g_look_ups = 0, g_failed_look_ups = 0;

}  // namespace

// In the place of the C library's, also for LibTorch.
extern "C" int getnameinfo(const sockaddr* address, socklen_t size, char* host, socklen_t host_size,
                           char* service, socklen_t service_size, int flags) {
  using Function = int(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int);
  static auto* const real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "getnameinfo"));
  const int error = real(address, size, host, host_size, service, service_size, flags);
  if ((flags & NI_NUMERICHOST) == 0) {
    ++g_look_ups;
    if (error != 0) ++g_failed_look_ups;
  }
  return error;
}

namespace troika {
namespace {

TEST(PeerNames, AreNotLookedUp) {
  const int servers = (res_init(), _res.nscount);
  const auto start = std::chrono::steady_clock::now();
  const Store host = Store::host(0, Reach::kThisHost);
  std::vector<Store> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(Store::connect(host.endpoint(), Deadline::in(Seconds(20))).clone());
  }
  clients.back().set("key", "value");
  EXPECT_EQ(clients.front().get("key", Deadline::in(Seconds(20))), "value");
  // The one that is made to fail.
  EXPECT_EQ(g_look_ups, 1);
  EXPECT_EQ(g_failed_look_ups, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
  EXPECT_EQ(_res.nscount, servers);  // the thread is as it was
}

}  // namespace
}  // namespace troika
