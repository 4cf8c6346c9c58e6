#include "device/backend/addresses.h"

#include <c10/util/Exception.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace troika::test {
namespace {

constexpr std::size_t kAddresses = 2 * kDefaultCapacity;  // of a device

// Reserves addresses only: pages come when kernels write.
Address reserve_pages(int protection) {
  void* const pages = mmap(nullptr, kTestDevices * kAddresses, protection,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(pages != MAP_FAILED, "the test device gets no addresses: ", std::strerror(errno));
  madvise(pages, kTestDevices * kAddresses, MADV_DONTDUMP);
  return reinterpret_cast<Address>(pages);
}

struct sigaction handler_before;

void say(std::string_view words) {
  static_cast<void>(!write(STDERR_FILENO, words.data(), words.size()));
}

// Says where host code has touched device memory. The instruction then runs, and fails, once more.
void on_segmentation_fault(int signal, siginfo_t* fault, void* /*context*/) {
  if (is_device_address(fault->si_addr)) {
    say("host code touches memory of the test device:\n");
    std::array<void*, 64> frames{};
    const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
    backtrace_symbols_fd(frames.data(), depth, STDERR_FILENO);
  }
  sigaction(signal, &handler_before, nullptr);
}

void watch_for_host_accesses() {
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);  // loads a library, which a signal handler may not
  struct sigaction handler {};
  handler.sa_sigaction = &on_segmentation_fault;
  handler.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &handler, &handler_before);
}

Address first_address() {
  static const Address first = [] {
    watch_for_host_accesses();
    return reserve_pages(PROT_NONE);
  }();
  return first;
}

Address first_stored_byte() {
  static const Address first = reserve_pages(PROT_READ | PROT_WRITE);
  return first;
}

}  // namespace

Range addresses_of(int device) {
  const Address begin =
      first_address() + static_cast<Address>(test_device(device).index()) * kAddresses;
  return {begin, begin + kAddresses};
}

bool is_device_address(const void* address) {
  const auto at = reinterpret_cast<Address>(address);
  return at >= first_address() && at < first_address() + kTestDevices * kAddresses;
}

c10::Device device_of_address(const void* address) {
  TORCH_CHECK(is_device_address(address), "not an address of the test device");
  return test_device(
      static_cast<int>((reinterpret_cast<Address>(address) - first_address()) / kAddresses));
}

void* storage_of(const void* device_address) {
  if (device_address == nullptr) {
    return nullptr;
  }
  TORCH_CHECK(is_device_address(device_address),
              "a tensor of the test device holds a host address");
  return reinterpret_cast<void*>(reinterpret_cast<Address>(device_address) - first_address() +
                                 first_stored_byte());
}

void poison(void* begin, std::size_t bytes) {
  std::memset(begin, 0xFF, bytes);
}

}  // namespace troika::test
