// Starts processes of the test program that need not load it: that takes half a second a process,
// for LibTorch. A server forks them, which is forked itself where main() begins: before there is a
// thread, and before OpenMP has done anything, as it hangs in children of those where it has.
// They are children of the test program, and map memory at addresses of their own.
#pragma once

#include <sys/types.h>
#include <troika/base/file.h>

#include <filesystem>
#include <map>
#include <string>

namespace troika::test {

class ForkServer {
 public:
  // `body` is what each process runs; its result is the exit status.
  explicit ForkServer(int (*body)());
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  // The one of this program. Throws std::logic_error where there is none.
  [[nodiscard]] static ForkServer& instance();

  // A process with these variables in addition to this one's as main() began, which reads nothing
  // and prints to the end of `output`; to be waited for by its number. One thread at a time.
  [[nodiscard]] pid_t start(const std::map<std::string, std::string>& variables,
                            const std::filesystem::path& output);

 private:
  [[noreturn]] void serve(int (*body)(), pid_t program);
  UniqueFd requests_;
};

}  // namespace troika::test
