// Which cores each rank of a host is bound to, where ranks compute on devices: those nearest to its
// device, so that copies between host and device do not cross the machine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Cores by number, ascending.
using CoreList = std::vector<int>;

// Reads cores as Linux lists them: "0-15,32-47". Ignores what is no such list.
[[nodiscard]] CoreList parse_core_list(std::string_view text);

// Returns the cores of this process's affinity mask; none where the system does not tell.
[[nodiscard]] CoreList allowed_cores();

// Returns the cores of each rank of a host. `nearest` has the cores nearest to each rank's device.
// Ranks with the same cores divide those of them that are `allowed`. Each gets its share of every
// run of neighbouring cores: the second threads of cores often are a run of their own. A rank gets
// none, and is not to be bound, where nothing near its device is known or allowed, or where there
// are more ranks than cores.
[[nodiscard]] std::vector<CoreList> divide_cores(const std::vector<CoreList>& nearest,
                                                 const CoreList& allowed);

}  // namespace troika
