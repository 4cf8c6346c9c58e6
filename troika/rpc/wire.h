// Internal: the bytes of requests and replies. The first message of a stream is an opening: what
// follows is declared in it, and small bodies lie in it. The rest of the body follows in chunks.
// Integers are little-endian.
//
//   request:
//     u32 "TRQ1", u8 kind, u8 carrier, u8 segment bytes, u16 method bytes, u32 header bytes,
//     u64 body bytes, segment, method, header, the beginning of the body
//   reply:
//     u32 "TRP1", u8 status, u8 carrier, u32 header bytes, u64 body bytes, header, the beginning of
//     the body
//
// A request may name a segment (segment.h) that its client has attached before, for its own body,
// for that of the reply, or for both. The header of a failure is an error (base/failure.h); such a
// reply has no body.
#pragma once

#include <troika/base/failure.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

// Bodies up to this size lie in the opening.
inline constexpr std::size_t kInlineBytes = std::size_t{16} << 10;
// The longest chunk, in bytes.
inline constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

enum class RequestKind : std::uint8_t {
  kCall,
  kAttach  // connects to the segment that its header names; the reply's header is kAttached, or
           // empty
};
inline constexpr std::string_view kAttached = "attached";

// Says what carries the body of a message.
enum class BodyCarrier : std::uint8_t { kStream, kSegment };

struct RequestOpening {
  RequestKind kind = RequestKind::kCall;
  BodyCarrier carrier = BodyCarrier::kStream;
  std::string_view segment = {};
  std::string_view method = {};
  std::string_view header = {};
  std::uint64_t body_bytes = 0;
  std::span<const std::byte> body_start = {};
};

enum class ReplyStatus : std::uint8_t {
  kSuccess,
  kFailure,
  kPeerFailure,
  kDeadlineFailure,
  kUnknownSegment
};

struct ReplyOpening {
  ReplyStatus status = ReplyStatus::kSuccess;
  BodyCarrier carrier = BodyCarrier::kStream;
  std::string_view header = {};
  std::uint64_t body_bytes = 0;
  std::span<const std::byte> body_start = {};
};

// Encode an opening. A body of up to kInlineBytes outside a segment has to lie in it.
[[nodiscard]] std::vector<std::byte> encode(const RequestOpening& opening);
[[nodiscard]] std::vector<std::byte> encode(const ReplyOpening& opening);

// Decode an opening into views of `bytes`. Throw DataError naming `source`, what is wrong and
// where: another beginning, a method or header beyond its limit (rpc.h), a text that is cut, more
// of the body than is declared, or less where it is small.
[[nodiscard]] RequestOpening decode_request(std::span<const std::byte> bytes,
                                            const std::string& source);
[[nodiscard]] ReplyOpening decode_reply(std::span<const std::byte> bytes,
                                        const std::string& source);

// Returns an exception as a text, which is at most kMostHeaderBytes long, and its status.
struct EncodedError {
  ReplyStatus status;
  std::string text;
};
[[nodiscard]] EncodedError encode_error(const std::exception& error);
// Throws the error that was encoded.
[[noreturn]] void throw_encoded(ReplyStatus status, std::string_view text);

}  // namespace troika::detail
