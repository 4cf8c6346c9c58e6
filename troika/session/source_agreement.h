// Finds hosts that start from other sources: files that each host reads for itself, or values that
// each rank has made. Every source has digests of its parts, which one rank of a host computes. A
// difference is the same error on every rank, and names the source, the part and both hosts.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>
#include <troika/session/session.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// A part of a source. `name` is as messages show it ("tensor 'fc.weight'"), on one line; empty for
// the whole.
struct SourcePart {
  std::string name;
  std::uint64_t digest = 0;

  bool operator==(const SourcePart&) const = default;
};

struct SharedSource {
  using Parts = std::function<std::vector<SourcePart>()>;

  // The source in messages, in the singular: "model.path 'net.pt'".
  std::string title;
  // The file or folder that it is read from. Ranks that see the same one on one host digest it
  // once. Empty, or no local path: each rank digests its own.
  std::filesystem::path path = {};
  // Returns the parts in the order in which a difference is to be named. Not collective.
  Parts parts;
  // Returns parts that say more of a difference, and cost more. Called after a difference only;
  // may be empty.
  Parts details = {};
  // The hint where all of these details are equal, though the parts are not; may be empty.
  std::string hint_if_details_are_equal = {};
};

struct SourceAgreement {
  std::string_view label;  // of the operations
  // The time for ranks that come later, or read longer.
  Seconds patience{300};
  std::string hint = "copy the same files to every host, or read them from a folder that all share";
};

// Throws DataError, on every rank, unless all ranks have the same sources; also what digesting one
// throws on any rank. Takes sources in the same order on all ranks. Where all ranks see the same
// files on one host, none is read. Collective. Throws DeadlineError, PeerError.
void agree_on_sources(const Session& session, std::span<const SharedSource> sources,
                      const SourceAgreement& agreement);

// Returns the part "tensor 'NAME'" of a tensor of any device and strides: its type, shape and bits.
[[nodiscard]] SourcePart tensor_part(std::string_view name, const at::Tensor& tensor);

// Returns what tells the file or folder at `path` from others, equal for ranks that see the same
// one: host, device, inode, size and time. Empty for what is no local file or folder.
[[nodiscard]] std::string identity_of_file(const std::filesystem::path& path);

}  // namespace troika
