// Internal: the plug-in that decodes images.
#pragma once

#include <troika/data/image_codec/plugin.h>

namespace troika {

// Returns the plug-in, loaded at the first call. Throws UsageError where there is none.
[[nodiscard]] const image_plugin::ImagePlugin& image_library();

}  // namespace troika
