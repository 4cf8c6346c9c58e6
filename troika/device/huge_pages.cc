#include <sys/mman.h>
#include <troika/device/huge_pages.h>

#include <cstddef>
#include <cstdint>

namespace troika {

at::Tensor in_huge_pages(at::Tensor fresh) {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  // Of fewer pages, those at both ends that stay small are most.
  if (!fresh.is_cpu() || fresh.nbytes() < 4 * kHugePage) return fresh;
  const auto data = reinterpret_cast<std::uintptr_t>(fresh.const_data_ptr());
  const std::uintptr_t begin = (data + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (data + fresh.nbytes()) / kHugePage * kHugePage;
  // A hint, so a refusal does not matter. NOLINTNEXTLINE(performance-no-int-to-ptr)
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  return fresh;
}

}  // namespace troika
