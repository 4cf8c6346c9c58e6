#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/rpc/client_messages.h>

#include <utility>

namespace troika::detail {

OutgoingRequest::OutgoingRequest(RequestKind kind, std::string_view method,
                                 const RpcMessage& request, const OwnSegment* segment)
    : chunks_(request.body) {
  RequestOpening opening;
  opening.kind = kind;
  opening.method = method;
  opening.header = request.header;
  opening.body_bytes = total_bytes(request.body);
  if (segment != nullptr) opening.segment = segment->name();
  if (segment != nullptr && suits_segment(opening.body_bytes) &&
      segment->memory().write(request.body)) {
    opening.carrier = BodyCarrier::kSegment;
    chunks_ = BodyChunks({});
  } else if (opening.body_bytes > 0 && opening.body_bytes <= kInlineBytes) {
    opening.body_start = chunks_.next().value();
  }
  opening_ = encode(opening);
}

std::optional<std::span<const std::byte>> OutgoingRequest::next() {
  if (opened_) return chunks_.next();
  opened_ = true;
  return opening_;
}

ArrivingReply::ArrivingReply(std::string source, std::uint64_t most_body_bytes,
                             std::span<std::byte> into, const OwnSegment* segment)
    : source_(std::move(source)),
      most_body_bytes_(most_body_bytes),
      into_(into),
      segment_(segment) {}

void ArrivingReply::take(std::span<const std::byte> message) {
  if (body_) {
    body_->append(message);
  } else {
    open(decode_reply(message, source_));
  }
}

RpcReply ArrivingReply::finish() {
  if (!body_) throw DataError(source_ + " is empty");
  if (carrier_ == BodyCarrier::kSegment) {
    body_->read(segment_->memory());
  } else {
    body_->finish();
  }
  if (status_ != ReplyStatus::kSuccess) throw_encoded(status_, header_);
  return {std::move(header_), body_->bytes(), body_->memory()};
}

bool ArrivingReply::could_use_segment() const {
  return body_ && carrier_ == BodyCarrier::kStream && suits_segment(body_->bytes().size());
}

void ArrivingReply::open(const ReplyOpening& opening) {
  status_ = opening.status;
  header_ = opening.header;
  carrier_ = opening.carrier;
  const bool names_segment = carrier_ == BodyCarrier::kSegment || segment_is_unknown();
  if (names_segment && segment_ == nullptr) {
    throw DataError(source_ + " tells of shared memory, and there is none");
  }
  const bool success = status_ == ReplyStatus::kSuccess;
  if (success && !into_.empty() && into_.size() != opening.body_bytes) {
    throw DataError(source_ + " has a body of " + std::to_string(opening.body_bytes) +
                    " bytes, and the memory for it has " + std::to_string(into_.size()));
  }
  if (opening.body_bytes > most_body_bytes_) {
    throw DataError(source_ + " has a body of " + format_bytes(opening.body_bytes) +
                        ", where the client takes " + format_bytes(most_body_bytes_),
                    "RpcClientOptions::most_body_bytes is the limit");
  }
  if (success && !into_.empty()) {
    body_.emplace(into_, source_);
  } else {
    body_.emplace(opening.body_bytes, BodyMemory().take(opening.body_bytes), source_);
  }
  body_->append(opening.body_start);
}

}  // namespace troika::detail
