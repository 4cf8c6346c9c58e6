// [data] kind = "images": a folder of JPEG and PNG files a class.
#pragma once

#include <troika/data/kind.h>

namespace troika {

[[nodiscard]] const DataKind& images_kind();

}  // namespace troika
