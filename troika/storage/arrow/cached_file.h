// Internal: a remote file whose blocks are kept on this host.
#pragma once

#include <arrow/io/interfaces.h>
#include <troika/storage/store_plugin.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace troika::store_plugin {

// Tells one content of a remote file from another.
struct RemoteIdentity {
  std::string text;  // its address, size and entity tag
  std::int64_t size = 0;
};

using RemoteInput = std::shared_ptr<arrow::io::RandomAccessFile>;

// Returns nothing where the file system gives no entity tag: what it has could be another content.
[[nodiscard]] arrow::Result<std::optional<RemoteIdentity>> identity_of(
    const std::string& uri, arrow::io::RandomAccessFile& file);

// Returns a file that takes what `blocks` have from there, and keeps in them what it reads from
// `remote`, which is opened by `open` when it is null and needed.
[[nodiscard]] RemoteInput open_cached(RemoteIdentity identity, const Blocks& blocks,
                                      RemoteInput remote,
                                      std::function<arrow::Result<RemoteInput>()> open);

}  // namespace troika::store_plugin
