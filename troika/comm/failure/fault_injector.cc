#include <troika/base/error.h>
#include <troika/comm/failure/fault_injector.h>
#include <troika/observe/log.h>

#include <fnmatch.h>
#include <unistd.h>

#include <charconv>
#include <csignal>

namespace troika {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw UsageError("TROIKA_STOP_AT=" + text + ": " + why,
                   "give RANK:OPERATION, such as '0:gradient bucket 1* on axis data'; the rank "
                   "stops where it would enter that operation");
}

}  // namespace

std::unique_ptr<FaultInjector> FaultInjector::parse(const std::string& text, int rank, int size) {
  int victim = -1;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, victim);
  if (error != std::errc() || victim < 0) refuse(text, "does not begin with a rank");
  if (victim >= size) refuse(text, "the ranks are 0 to " + std::to_string(size - 1));
  if (rest == end || *rest != ':' || rest + 1 == end) refuse(text, "names no operation");
  if (victim != rank) return nullptr;
  return std::unique_ptr<FaultInjector>(new FaultInjector(std::string(rest + 1, end)));
}

FaultInjector::FaultInjector(std::string pattern) : pattern_(std::move(pattern)) {}

FaultInjector::~FaultInjector() {
  if (!stopped_) log_warning("TROIKA_STOP_AT: entered no operation '" + pattern_ + "'");
}

void FaultInjector::enter(std::string_view label, std::string_view axis) {
  if (stopped_) return;
  const std::string name = std::string(label) + " on axis " + std::string(axis);
  if (fnmatch(pattern_.c_str(), name.c_str(), 0) != 0 || stopped_.exchange(true)) return;
  log_warning("stops before '" + std::string(label) + "' on axis " + std::string(axis) +
              " (TROIKA_STOP_AT); kill -CONT " + std::to_string(getpid()) + " continues it");
  // All threads of the process, at once.
  std::raise(SIGSTOP);
}

}  // namespace troika
