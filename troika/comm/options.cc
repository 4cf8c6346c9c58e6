#include <troika/comm/options.h>

namespace troika {

template <>
std::span<const std::string_view> names_of<EngineKind>() {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"auto", "shm", "gloo", "mpi", "nccl", "fake"});
  return kNames;
}

std::vector<Key> comm_keys() {
  using O = CommOptions;
  using K = KeysOf<O>;
  return {
      K::choice<&O::engine>("engine", "what moves the data between ranks"),
      K::seconds<&O::timeout_seconds>("timeout_seconds", "one collective of a step"),
      K::seconds<&O::rendezvous_timeout_seconds>("rendezvous_timeout_seconds",
                                                 "until all ranks have joined"),
  };
}

}  // namespace troika
