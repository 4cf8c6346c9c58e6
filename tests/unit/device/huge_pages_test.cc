#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/device/huge_pages.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace troika {
namespace {

// Returns the flags of the mapping that holds an address: "hg" is in them where huge pages were
// asked for.
std::string flags_at(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      is_inside = begin <= wanted && wanted < end;
    }
    if (is_inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

TEST(HugePages, AreAskedForBelowTheMiddleOfALargeTensor) {
  const at::Tensor fresh = at::empty({64 * kMiB}, at::kByte);
  const at::Tensor same = in_huge_pages(fresh);
  EXPECT_TRUE(same.is_same(fresh));
  const auto* const bytes = fresh.const_data_ptr<std::uint8_t>();
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    GTEST_SKIP() << "this kernel has no huge pages";
  }
  EXPECT_THAT(flags_at(bytes + 32 * kMiB), testing::HasSubstr(" hg "));
}

TEST(HugePages, AreNotForSmallTensorsAndThoseWithoutMemory) {
  for (const at::Tensor& small : {at::empty({0}), at::empty({3}), at::empty({1000}, at::kMeta)}) {
    EXPECT_TRUE(in_huge_pages(small).is_same(small));
  }
  const at::Tensor below = at::full({7 * kMiB / 4}, 2.5F);
  EXPECT_TRUE(in_huge_pages(below).eq(2.5).all().item<bool>());
}

}  // namespace
}  // namespace troika
