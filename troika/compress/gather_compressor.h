// Internal. Compressors whose payloads no engine can add up: all ranks gather those of all, and
// average them in the order of ranks, so that they have the same bits.
#pragma once

#include <troika/compress/codec.h>
#include <troika/compress/compressor.h>

#include <memory>

namespace troika::detail {

class GatherCompressor final : public Compressor {
 public:
  explicit GatherCompressor(std::shared_ptr<const Codec> codec);

 private:
  [[nodiscard]] Work send(const GradientBucket& bucket, Entry& entry,
                          const at::Tensor& input) override;
  void receive(const GradientBucket& bucket, Entry& entry, const at::Tensor& average) override;

  std::shared_ptr<const Codec> codec_;
};

}  // namespace troika::detail
