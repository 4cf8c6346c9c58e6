// The manifest of a checkpoint. It names the file of each part of each tensor, the numbers of the
// run, and the digests that a damaged file fails. It is written last, so a folder without one is no
// checkpoint. docs/checkpoints.md has the format. Nothing here needs LibTorch.
#pragma once

#include <troika/checkpoint/encryption.h>
#include <troika/checkpoint/safetensors_header.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troika {

// Elements [begin, begin + count) of the slice [slice_begin, slice_end) along `dim` of a tensor,
// row by row. The file has them under the tensor's name, as one dimension.
struct ManifestPart {
  std::string tensor;
  int dim = 0;
  std::int64_t slice_begin = 0;
  std::int64_t slice_end = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;

  bool operator==(const ManifestPart&) const = default;
};

struct ManifestTensor {
  DataType type = DataType::kF32;
  std::vector<std::int64_t> shape;  // of the whole

  bool operator==(const ManifestTensor&) const = default;
};

// Describes what one rank has written.
struct ManifestShard {
  std::string file;  // a name in the checkpoint's folder
  std::uint64_t bytes = 0;
  std::string sha256;  // 64 hexadecimal digits
  std::vector<ManifestPart> parts;

  bool operator==(const ManifestShard&) const = default;
};

struct Manifest {
  using Number = std::variant<std::int64_t, double>;

  std::int64_t step = 0;
  std::map<std::string, Number> numbers;
  std::map<std::string, ManifestTensor> tensors;
  std::vector<ManifestShard> shards;
  std::string recipe;   // as TOML, resolved
  Metadata provenance;  // "troika", "libtorch", "ranks", ...
  std::string key_id;   // of the key that its files are encrypted with; empty where they are not
  std::string code;     // by which that key authenticates all of the above

  bool operator==(const Manifest&) const = default;
};

// Returns the JSON text. Throws InternalError where parse_manifest() would refuse it.
[[nodiscard]] std::string format_manifest(const Manifest& manifest);
// Reads and checks a text: every element of every tensor is in exactly one part, every part in a
// file whose name leads nowhere else. Throws DataError, one line that names `source` and what is
// wrong.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& source);

// Sets key_id and code.
void authenticate(Manifest& manifest, const EncryptionKey& key);
// Returns the key of the files, where they are encrypted. Throws DataError naming `source` where it
// is not known, or has not authenticated this manifest.
[[nodiscard]] std::optional<EncryptionKey> key_of(const Manifest& manifest,
                                                  const std::string& source);

// The JSON of what one rank has written, which it sends to the one that writes the manifest: its
// tensors with their types and shapes, and its shard.
struct ShardReport {
  ManifestShard shard = {};                            // `file` is empty where it wrote nothing
  std::map<std::string, ManifestTensor> tensors = {};  // of its parts
  std::string error = {};                              // what went wrong; empty where nothing did
};
[[nodiscard]] std::string format_report(const ShardReport& report);
[[nodiscard]] ShardReport parse_report(std::string_view text, const std::string& source);

}  // namespace troika
