#include <sys/auxv.h>
#include <troika/base/own_program.h>

#include <system_error>

namespace troika {

std::filesystem::path own_program() {
  std::error_code error;
  std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return program;
  // As it was given to execve(2).
  return std::filesystem::absolute(reinterpret_cast<const char*>(::getauxval(AT_EXECFN)));
}

}  // namespace troika
