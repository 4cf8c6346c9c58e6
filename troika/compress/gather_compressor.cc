#include <ATen/ATen.h>
#include <troika/compress/gather_compressor.h>

#include <utility>

namespace troika::detail {

GatherCompressor::GatherCompressor(std::shared_ptr<const Codec> codec)
    : Compressor(codec->is_biased() ? Feedback::kKept : Feedback::kNone),
      codec_(std::move(codec)) {}

Work GatherCompressor::send(const GradientBucket& bucket, Entry& entry, const at::Tensor& input) {
  const Group& group = *bucket.group;
  const std::int64_t bytes = codec_->payload_bytes(input.numel(), input.scalar_type());
  const at::Tensor all = buffer(bucket, entry, 0, bytes * group.size(), at::kByte);
  const at::Tensor own = all.narrow(0, bytes * group.rank(), bytes);
  const Codec::DrawKey key{bucket.index, entry.next.rounds, group.rank()};
  codec_->encode(input, own, key);
  if (has_feedback()) {
    const at::Tensor sent = at::zeros_like(input);
    codec_->add_decoded(own, sent, key);
    input.sub_(sent);
  }
  return group.all_gather(all, own, bucket.call);
}

void GatherCompressor::receive(const GradientBucket& bucket, Entry& entry,
                               const at::Tensor& average) {
  const int ranks = bucket.group->size();
  const std::int64_t bytes = entry.wire[0].numel() / ranks;
  average.zero_();
  for (int rank = 0; rank < ranks; ++rank) {
    codec_->add_decoded(entry.wire[0].narrow(0, rank * bytes, bytes), average,
                        {bucket.index, entry.next.rounds, rank});
  }
  average.div_(static_cast<double>(ranks));
}

}  // namespace troika::detail
