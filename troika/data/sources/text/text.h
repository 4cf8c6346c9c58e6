// [data] kind = "text": text files, tokenised as they are read.
#pragma once

#include <troika/data/kind.h>

namespace troika {

[[nodiscard]] const DataKind& text_kind();

}  // namespace troika
