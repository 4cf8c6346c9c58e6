// Internal: reading the files of TlsFiles.
#pragma once

#include <troika/rpc/rpc.h>
#include <troika/rpc/rpc_plugin.h>

#include <optional>

namespace troika::detail {

// Returns the contents of the files, nothing for nothing. Throws UsageError if one is not named or
// is no PEM of its kind, DataError if it cannot be read.
[[nodiscard]] std::optional<rpc_plugin::Tls> read_tls(const std::optional<TlsFiles>& files);

}  // namespace troika::detail
