#include <troika/comm/bootstrap/network.h>

#include <gmock/gmock.h>
#include <troika/base/error.h>

#include <cstdlib>

namespace troika {
namespace {

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Network, FindsTheLoopback) {
  for (const NetworkInterface& each : network_interfaces()) {
    if (!each.loopback) continue;
    EXPECT_EQ(each.name, "lo");
    EXPECT_THAT(each.addresses, testing::Contains("127.0.0.1"));
    return;
  }
  ADD_FAILURE() << "no loopback interface";
}

TEST(Network, TakesTheRequestedInterface) {
  unsetenv("TROIKA_INTERFACE");
  unsetenv("GLOO_SOCKET_IFNAME");
  EXPECT_EQ(requested_interface(), std::nullopt);
  const Variable glue("GLOO_SOCKET_IFNAME", "nothing0");
  const Variable own("TROIKA_INTERFACE", "lo");
  EXPECT_EQ(requested_interface(), "lo");
}

TEST(Network, NamesTheInterfacesThereAre) {
  const Variable own("TROIKA_INTERFACE", "nothing0");
  try {
    (void)requested_interface();
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("TROIKA_INTERFACE=nothing0"));
    EXPECT_THAT(error.hint(), testing::HasSubstr("lo"));
  }
}

}  // namespace
}  // namespace troika
