// What the ranks of one host do once for all of them when they open their data: to walk folders, to
// list stores, to tokenise texts. The data do not know how ranks reach each other;
// train/host_ranks.h does.
#pragma once

#include <troika/data/find_files.h>

#include <functional>
#include <string>
#include <string_view>

namespace troika {

class HostWork {
 public:
  // Work whose result is a text. It calls `goes_on` from time to time if it may take long.
  using Make = std::function<std::string(const GoesOn& goes_on)>;

  virtual ~HostWork() = default;
  // Returns how many ranks share their work, this one with them: ranks of one host that see the
  // same folders.
  [[nodiscard]] virtual int ranks() = 0;
  // Calls `make` on one of these ranks, and returns its result on all. Collective among them, in
  // one order. Throws on all of them what `make` throws; PeerError or DeadlineError where a rank
  // does not come. `label` names the work in errors.
  [[nodiscard]] virtual std::string once(std::string_view label, const Make& make) = 0;
  // Waits for these ranks. Collective among them; throws likewise.
  virtual void wait_for_all(std::string_view label) = 0;
};

// The work of a rank that shares none.
class OwnWork final : public HostWork {
 public:
  [[nodiscard]] int ranks() override { return 1; }
  [[nodiscard]] std::string once(std::string_view, const Make& make) override {
    return make([] {});
  }
  void wait_for_all(std::string_view) override {}
};

// Calls `find` once for the ranks of a host. Throws likewise.
[[nodiscard]] FileSearch find_once(HostWork& host,
                                   const std::function<FileSearch(const GoesOn&)>& find);

}  // namespace troika
