#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/server/messages.h>
#include <troika/server/push_compressor.h>
#include <troika/server/server_shard.h>

#include <utility>

namespace troika {

void PushCompressor::encode(const at::Tensor& gradients, int shards, double unit,
                            std::int64_t round, int sender) {
  at::Tensor input = gradients;
  if (codec_->is_biased()) {
    if (!next_error_.defined()) next_error_ = at::empty_like(gradients);
    if (error_.defined()) {
      at::add_out(next_error_, gradients, error_, 1 / unit);
    } else {
      next_error_.copy_(gradients);
    }
    input = next_error_;
  }
  payloads_.resize(static_cast<std::size_t>(shards));
  for (int shard = 0; shard < shards; ++shard) {
    const IndexRange range = shard_range(gradients.numel(), shard, shards);
    encode_shard(shard, gradients.narrow(0, range.first, range.count),
                 input.narrow(0, range.first, range.count), {shard, round, sender});
  }
  if (codec_->is_biased()) next_error_.sub_(gradients).mul_(unit);
  is_pending_ = true;
}

void PushCompressor::encode_shard(int shard, const at::Tensor& gradients, const at::Tensor& input,
                                  const Codec::DrawKey& key) {
  if (input.numel() == 0) return;
  at::Tensor& payload = payloads_[static_cast<std::size_t>(shard)];
  const std::int64_t bytes = codec_->payload_bytes(input.numel(), input.scalar_type());
  // Zeros, so that what rounds it up to whole words is always the same.
  if (!payload.defined() || payload.numel() != bytes) payload = at::zeros({bytes}, at::kByte);
  codec_->encode(input, payload, key);
  gradients.zero_();
  codec_->add_decoded(payload, gradients, key);
}

std::span<const std::byte> PushCompressor::payload(int shard) const {
  const at::Tensor& payload = payloads_.at(static_cast<std::size_t>(shard));
  if (!payload.defined()) return {};
  return messages::bytes_of(payload);
}

void PushCompressor::end_push(bool applied) {
  // Of a push that was left out the error of the push before stays: the gradient is gone, and with
  // it what was cut from it.
  if (std::exchange(is_pending_, false) && applied) std::swap(error_, next_error_);
}

void PushCompressor::reset() {
  is_pending_ = false;
  error_.reset();
}

void decode_push(const Codec& codec, std::span<const std::byte> payload, const at::Tensor& gradient,
                 const Codec::DrawKey& key) {
  gradient.zero_();
  if (gradient.numel() == 0 && payload.empty()) return;
  const at::Tensor bytes = messages::tensor_on(payload, at::kByte);
  codec.check_payload(bytes, gradient.numel(), gradient.scalar_type());
  codec.add_decoded(bytes, gradient, key);
}

}  // namespace troika
