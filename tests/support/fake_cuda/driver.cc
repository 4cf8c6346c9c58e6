// In place of NVIDIA's driver: says what the environment tells it to, FAKE_CUDA_INIT (the code of
// cuInit), FAKE_CUDA_VERSION, FAKE_CUDA_DEVICES and FAKE_CUDA_CAPABILITY (86: 8.6) of the last of
// them; the others have 9.0.
#include <cstdlib>

namespace {

int number(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  return value != nullptr ? static_cast<int>(std::strtol(value, nullptr, 10)) : otherwise;
}

}  // namespace

extern "C" {
// Names of CUDA's. NOLINTBEGIN(readability-identifier-naming)

int cuInit(unsigned) {
  return number("FAKE_CUDA_INIT", 0);
}

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_CUDA_VERSION", 13000);
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = number("FAKE_CUDA_DEVICES", 2);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  constexpr int kMajor = 75;
  const bool last = device == number("FAKE_CUDA_DEVICES", 2) - 1;
  const int capability = last ? number("FAKE_CUDA_CAPABILITY", 90) : 90;
  *value = attribute == kMajor ? capability / 10 : capability % 10;
  return 0;
}

// NOLINTEND(readability-identifier-naming)
}
