// Internal: the plug-in that reaches object stores, with the patience and the cache of this
// process.
#pragma once

#include <troika/base/time.h>
#include <troika/storage/store_plugin.h>

namespace troika {

// Returns the plug-in, loaded at the first call. Throws UsageError where this build has none.
// Thread safe.
[[nodiscard]] const store_plugin::StorePlugin& store_library();
// Returns how long requests that fail are made again. Thread safe.
[[nodiscard]] Seconds store_patience();

}  // namespace troika
