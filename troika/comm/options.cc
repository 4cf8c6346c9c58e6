#include <troika/comm/engine_kind.h>
#include <troika/comm/options.h>

namespace troika {

std::vector<std::string_view> engine_names() {
  std::vector<std::string_view> words = {kAutoEngine};
  for (const EngineKind* kind : EngineKind::all()) words.push_back(kind->name);
  return words;
}

std::vector<Key> comm_keys() {
  using O = CommOptions;
  using K = KeysOf<O>;
  return {
      K::word<&O::engine>("engine", engine_names, "what moves the data between ranks"),
      K::seconds<&O::timeout_seconds>("timeout_seconds", "one collective of a step"),
      K::seconds<&O::rendezvous_timeout_seconds>("rendezvous_timeout_seconds",
                                                 "until all ranks have joined"),
  };
}

}  // namespace troika
