#include <troika/rendezvous/snapshots.h>

#include <cstdlib>

namespace troika {
namespace {

constexpr const char* kOffered = "snapshots/offered";

}  // namespace

std::string snapshot_key(int rank) {
  return "snapshots/of/" + std::to_string(rank);
}

std::string snapshots_wanted_key(int node) {
  return "snapshots/wanted/" + std::to_string(node);
}

void offer_snapshots(Store& job, int nodes) {
  job.set(kOffered, std::to_string(nodes));
}

void ask_launchers_for_snapshots(Store& job) {
  if (!job.is_set(kOffered)) return;
  const long nodes = std::strtol(job.get_all({kOffered}).front().c_str(), nullptr, 10);
  for (int node = 0; node < nodes; ++node) job.set(snapshots_wanted_key(node), "");
}

}  // namespace troika
