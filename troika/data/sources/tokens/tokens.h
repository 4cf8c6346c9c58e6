// [data] kind = "tokens": shards of tokens, which `troika data prepare` writes.
#pragma once

#include <troika/data/kind.h>

namespace troika {

[[nodiscard]] const DataKind& tokens_kind();

}  // namespace troika
