#include <fcntl.h>
#include <troika/base/standard_descriptors.h>
#include <unistd.h>

namespace troika {

void open_standard_descriptors() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    if (fcntl(number, F_GETFD) >= 0) continue;
    // The lowest free number is this one. It stays open in the programs that are started.
    if (open("/dev/null", O_RDONLY) >= 0) continue;
    (void)open("/", O_PATH);  // where there is no such device
  }
}

}  // namespace troika
