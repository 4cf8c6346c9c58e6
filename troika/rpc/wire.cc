#include <troika/base/bytes.h>
#include <troika/rpc/rpc.h>
#include <troika/rpc/segment.h>
#include <troika/rpc/wire.h>

#include <algorithm>
#include <string>

namespace troika::detail {
namespace {

constexpr std::uint32_t kRequestMagic = 0x31515254;  // "TRQ1"
constexpr std::uint32_t kReplyMagic = 0x31505254;    // "TRP1"

void check_magic(ByteReader& reader, std::uint32_t magic, std::string_view what) {
  if (reader.read<std::uint32_t>() != magic) {
    reader.fail("this is no " + std::string(what) + " of this version of troika");
  }
}

std::uint32_t header_bytes(ByteReader& reader) {
  const auto bytes = reader.read<std::uint32_t>();
  if (bytes > kMostHeaderBytes) {
    reader.fail("a header of " + std::to_string(bytes) + " bytes, where " +
                std::to_string(kMostHeaderBytes) + " are allowed");
  }
  return bytes;
}

BodyCarrier carrier_of(ByteReader& reader) {
  const auto carrier = reader.read<std::uint8_t>();
  if (carrier > static_cast<std::uint8_t>(BodyCarrier::kSegment))
    reader.fail("a body in an unknown place");
  return static_cast<BodyCarrier>(carrier);
}

std::string_view segment_name(ByteReader& reader, std::uint8_t bytes, BodyCarrier carrier) {
  const std::string_view name = text_of(reader.take(bytes));
  if (!name.empty() && !is_segment_name(name)) reader.fail("a segment of an impossible name");
  if (name.empty() && carrier == BodyCarrier::kSegment) reader.fail("a body in no segment");
  return name;
}

// Takes what is left: the beginning of the body, all of it where it is small.
std::span<const std::byte> body_start(ByteReader& reader, std::uint64_t body_bytes,
                                      BodyCarrier carrier) {
  const std::uint64_t here = reader.remaining();
  const bool whole = body_bytes <= kInlineBytes && carrier == BodyCarrier::kStream;
  const std::uint64_t most = carrier == BodyCarrier::kStream ? body_bytes : 0;
  if (here > most || (whole && here != body_bytes)) {
    reader.fail("a body of " + std::to_string(body_bytes) + " bytes is declared, and " +
                std::to_string(here) + " are here");
  }
  return reader.take(here);
}

std::string one_line(std::string_view text, std::size_t most) {
  std::string line(text.substr(0, most));
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < ' ' && c != '\n'; }, ' ');
  return line;
}

}  // namespace

std::vector<std::byte> encode(const RequestOpening& opening) {
  ByteWriter writer;
  writer.write(kRequestMagic);
  writer.write(static_cast<std::uint8_t>(opening.kind));
  writer.write(static_cast<std::uint8_t>(opening.carrier));
  writer.write(static_cast<std::uint8_t>(opening.segment.size()));
  writer.write(static_cast<std::uint16_t>(opening.method.size()));
  writer.write(static_cast<std::uint32_t>(opening.header.size()));
  writer.write(opening.body_bytes);
  writer.write_text(opening.segment);
  writer.write_text(opening.method);
  writer.write_text(opening.header);
  writer.write_bytes(opening.body_start);
  return writer.release();
}

std::vector<std::byte> encode(const ReplyOpening& opening) {
  ByteWriter writer;
  writer.write(kReplyMagic);
  writer.write(static_cast<std::uint8_t>(opening.status));
  writer.write(static_cast<std::uint8_t>(opening.carrier));
  writer.write(static_cast<std::uint32_t>(opening.header.size()));
  writer.write(opening.body_bytes);
  writer.write_text(opening.header);
  writer.write_bytes(opening.body_start);
  return writer.release();
}

RequestOpening decode_request(std::span<const std::byte> bytes, const std::string& source) {
  ByteReader reader(bytes, source);
  RequestOpening opening;
  check_magic(reader, kRequestMagic, "request");
  const auto kind = reader.read<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(RequestKind::kAttach)) reader.fail("an unknown request");
  opening.kind = static_cast<RequestKind>(kind);
  opening.carrier = carrier_of(reader);
  const auto segment = reader.read<std::uint8_t>();
  const auto method = reader.read<std::uint16_t>();
  if (method == 0 || method > kMostMethodBytes) {
    reader.fail("a method's name of " + std::to_string(method) + " bytes, where 1 to " +
                std::to_string(kMostMethodBytes) + " are allowed");
  }
  const std::uint32_t header = header_bytes(reader);
  opening.body_bytes = reader.read<std::uint64_t>();
  opening.segment = segment_name(reader, segment, opening.carrier);
  opening.method = text_of(reader.take(method));
  opening.header = text_of(reader.take(header));
  opening.body_start = body_start(reader, opening.body_bytes, opening.carrier);
  return opening;
}

ReplyOpening decode_reply(std::span<const std::byte> bytes, const std::string& source) {
  ByteReader reader(bytes, source);
  ReplyOpening opening;
  check_magic(reader, kReplyMagic, "reply");
  const auto status = reader.read<std::uint8_t>();
  if (status > static_cast<std::uint8_t>(ReplyStatus::kUnknownSegment)) {
    reader.fail("a reply of an unknown status");
  }
  opening.status = static_cast<ReplyStatus>(status);
  opening.carrier = carrier_of(reader);
  const std::uint32_t header = header_bytes(reader);
  opening.body_bytes = reader.read<std::uint64_t>();
  if (opening.status != ReplyStatus::kSuccess && opening.body_bytes != 0) {
    reader.fail("an error with a body");
  }
  opening.header = text_of(reader.take(header));
  opening.body_start = body_start(reader, opening.body_bytes, opening.carrier);
  return opening;
}

EncodedError encode_error(const std::exception& error) {
  constexpr std::size_t kMost = std::size_t{64} << 10;  // of a line: half a header holds both
  Failure failure = failure_of(error);
  failure.message = one_line(failure.message, kMost);
  failure.hint = one_line(failure.hint, kMost);
  ReplyStatus status = ReplyStatus::kFailure;
  if (dynamic_cast<const PeerError*>(&error) != nullptr) status = ReplyStatus::kPeerFailure;
  if (dynamic_cast<const DeadlineError*>(&error) != nullptr) status = ReplyStatus::kDeadlineFailure;
  return {status, encode(failure)};
}

void throw_encoded(ReplyStatus status, std::string_view text) {
  Failure failure = decode_failure(text);
  if (status == ReplyStatus::kDeadlineFailure) throw DeadlineError(failure.message, failure.hint);
  failure.secondary = status == ReplyStatus::kPeerFailure;
  throw_failure(failure);
}

}  // namespace troika::detail
