#include "device/backend/addresses.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

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

Address first_address() {
  static const Address first = reserve_pages(PROT_NONE);
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
