// Gradients that are pushed in fewer bytes: a payload for each server, and what a worker keeps of
// what it has not sent (error feedback, Karimireddy et al. 2019).
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/compress/codec.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace troika {

// The sender. Its error begins at zero. Not thread safe.
class PushCompressor {
 public:
  explicit PushCompressor(std::shared_ptr<const Codec> codec) : codec_(std::move(codec)) {}

  // Encodes `gradients` [parameters] of the host plus the error, a payload for each of `shards`
  // servers, and leaves in `gradients` what they decode. The error is kept in units of `gradients`
  // times `unit`: those in which updates are made, which later gradients may not share. What was
  // encoded before, and has not ended as applied, counts as not sent.
  void encode(const at::Tensor& gradients, int shards, double unit, std::int64_t round, int sender);
  // Returns a payload of the last encode(), which lasts until the next one. It is empty where a
  // server has no parameters.
  [[nodiscard]] std::span<const std::byte> payload(int shard) const;
  // Ends what was encoded, once. Unless `applied`, the error is what it was before.
  void end_push(bool applied);
  // Forgets the error.
  void reset();
  // Returns what is still to be sent, [parameters]; undefined where nothing is.
  [[nodiscard]] const at::Tensor& error() const { return error_; }

 private:
  void encode_shard(int shard, const at::Tensor& gradients, const at::Tensor& input,
                    const Codec::DrawKey& key);

  std::shared_ptr<const Codec> codec_;
  at::Tensor error_, next_error_;  // the latter if what is encoded is applied
  bool is_pending_ = false;
  std::vector<at::Tensor> payloads_;  // bytes, by shard
};

// The receiver: leaves in `gradient` what a payload says. Throws DataError where it is none of so
// many elements.
void decode_push(const Codec& codec, std::span<const std::byte> payload, const at::Tensor& gradient,
                 const Codec::DrawKey& key);

}  // namespace troika
