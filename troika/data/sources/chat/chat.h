// [data] kind = "chat": conversations, where the assistant's words are learned.
#pragma once

#include <troika/data/kind.h>

namespace troika {

[[nodiscard]] const DataKind& chat_kind();

}  // namespace troika
