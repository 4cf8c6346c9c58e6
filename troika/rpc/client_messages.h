// Internal: the messages of a call at its caller: a request as it leaves, and the reply as it
// comes.
#pragma once

#include <troika/rpc/body_chunks.h>
#include <troika/rpc/received_body.h>
#include <troika/rpc/rpc.h>
#include <troika/rpc/segment.h>
#include <troika/rpc/wire.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

// Passes on the opening of a request, then what of the body does not lie in that. The request must
// outlive it.
class OutgoingRequest {
 public:
  // Writes the body to `segment` if that is there, has room, and the size suits it.
  OutgoingRequest(RequestKind kind, std::string_view method, const RpcMessage& request,
                  const OwnSegment* segment);

  // Returns the next message, which lasts until the next call; nothing at the end.
  [[nodiscard]] std::optional<std::span<const std::byte>> next();

 private:
  std::vector<std::byte> opening_;
  bool opened_ = false;
  BodyChunks chunks_;  // of what is left to send
};

// Puts a reply together, in `into` if that is not empty. Its body may lie in `segment`, which may
// be null and has to last until finish(). `source` names it in errors.
class ArrivingReply {
 public:
  ArrivingReply(std::string source, std::uint64_t most_body_bytes, std::span<std::byte> into,
                const OwnSegment* segment);

  // Takes a message. Throws DataError if it is malformed, or its body larger than `most_body_bytes`
  // or of another size than `into`.
  void take(std::span<const std::byte> message);

  // Returns the reply once all has arrived. Throws DataError if something lacks, or what the
  // handler has thrown.
  [[nodiscard]] RpcReply finish();

  // Return whether the server knows nothing of the segment, and so has not handled the request; and
  // whether it has sent a body that would have suited a segment. Valid once all has arrived.
  [[nodiscard]] bool segment_is_unknown() const { return status_ == ReplyStatus::kUnknownSegment; }
  [[nodiscard]] bool could_use_segment() const;

 private:
  void open(const ReplyOpening& opening);

  std::string source_;
  std::uint64_t most_body_bytes_;
  std::span<std::byte> into_;
  const OwnSegment* segment_;
  ReplyStatus status_ = ReplyStatus::kSuccess;
  BodyCarrier carrier_ = BodyCarrier::kStream;
  std::string header_;
  std::optional<ReceivedBody> body_;
};

}  // namespace troika::detail
