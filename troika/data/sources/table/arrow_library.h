// Internal: the plug-in that reads tables.
#pragma once

#include <troika/data/arrow/plugin.h>

namespace troika {

// Returns the plug-in, loaded at the first call. Throws UsageError where there is none. A rank
// loads it when it opens its table, long after it was started, so that no thread of Arrow's is lost
// in a fork.
[[nodiscard]] const arrow_plugin::ArrowPlugin& arrow_library();

// Sizes Arrow's pools as ATen's: by the cores that this rank may use.
void fit_arrow_threads();

}  // namespace troika
