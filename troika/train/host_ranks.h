// The ranks of a host that see the same folders, which open their data with some of the work done
// once for all of them.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/group.h>
#include <troika/data/dataset.h>
#include <troika/data/host_work.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

class Job;

// Returns a number that processes have in common where every path, absolute or relative, leads them
// to the same file, with the same rights: one host, mount namespace, root, current folder and user.
// Returns another number each time where that cannot be told.
[[nodiscard]] std::uint64_t paths_fingerprint(const std::string& host_identity);

// The rank that comes first in the group works. While it does, it sends the others a sign of life
// from time to time, so that work may take longer than they wait for a rank that is silent; it has
// the threads of all of them meanwhile.
class HostRanks final : public HostWork {
 public:
  // Returns the group of ranks that share their work; nothing for a rank that shares none.
  // Collective.
  using MakeGroup = std::function<std::optional<Group>()>;

  // `make_group` is called when the ranks are needed first. The others wait `patience` for each
  // sign of life, and the working rank gives one at most each `apart`.
  HostRanks(MakeGroup make_group, Seconds patience, Seconds apart = Seconds(2));
  // Shares the work of the ranks of a job. `job` must outlive this.
  explicit HostRanks(const Job& job);

  [[nodiscard]] int ranks() override;
  [[nodiscard]] std::string once(std::string_view label, const Make& make) override;
  void wait_for_all(std::string_view label) override;

 private:
  enum class Sign : std::int64_t { kGoesOn, kDone, kFailed };

  [[nodiscard]] Call call(std::string_view label) const { return {label, Deadline::in(patience_)}; }
  std::string work(std::string_view label, const Make& make);
  std::string wait_for_work(std::string_view label);
  void send(std::string_view label, Sign sign, std::string_view text);

  MakeGroup make_group_;
  Seconds patience_, apart_;
  bool is_known_ = false;
  std::optional<Group> group_;
};

// Opens the data of a job's recipe. Collective. Throws as open_dataset().
[[nodiscard]] std::unique_ptr<Dataset> open_data_of(const Job& job, const Recipe& recipe);

}  // namespace troika
