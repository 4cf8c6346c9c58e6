#include <troika/base/units.h>
#include <troika/device/out_of_memory.h>

#include <string_view>

namespace troika {
namespace {

constexpr std::string_view kSays = " is out of memory";

// "20.00 GiB" of "... Tried to allocate 20.00 GiB. ...", as LibTorch's allocators word it.
std::string wanted(std::string_view text) {
  constexpr std::string_view kBefore = "ried to allocate ";
  const std::size_t at = text.find(kBefore);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = text.substr(at + kBefore.size());
  return std::string(rest.substr(0, rest.find(". ")));
}

}  // namespace

Error out_of_memory(const c10::OutOfMemoryError& error, const DeviceFacts& facts) {
  std::string message = facts.device + std::string(kSays);
  const std::string more = wanted(error.what_without_backtrace());
  if (!more.empty()) message += ": " + more + " were asked for";
  const char* separator = more.empty() ? ": " : "; ";
  if (facts.allocator) {
    message += separator + std::string("tensors hold ") + format_bytes(facts.allocator->allocated) +
               ", the allocator keeps " + format_bytes(facts.allocator->cached);
    separator = ", ";
  }
  if (facts.total_bytes > 0) {
    message += separator + format_bytes(facts.free_bytes) + " of " +
               format_bytes(facts.total_bytes) + " are free";
  }
  return {ExitCode::kInternal, message,
          "smaller microbatches (train.micro_batch_size) need less, and so does computing "
          "activations again (parallel.activation_checkpoint)"};
}

bool is_out_of_memory(std::string_view message) {
  return message.find(kSays) != std::string_view::npos;
}

}  // namespace troika
