// How values go from one process to another in fewer bytes than they have: what ranks gather for
// an average (gather_compressor.h), and what workers push to servers (troika/server).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace troika {

// Const access is thread safe.
class Codec {
 public:
  virtual ~Codec() = default;

  // Names the use of random draws, so that sender and receiver draw the same.
  struct DrawKey {
    int part = 0;  // a bucket, or a server
    std::int64_t round = 0;
    int sender = 0;  // a rank, or the position of a worker
  };

  // Returns its name and options, to be compared between processes.
  [[nodiscard]] virtual std::string describe() const = 0;
  // Returns whether a sender has to keep what it has not sent, and add it to what comes next (error
  // feedback).
  [[nodiscard]] virtual bool is_biased() const { return true; }
  // Returns the bytes for so many elements of fp32 or fp64, at least one: a multiple of 8. Throws
  // UsageError where they are too many.
  [[nodiscard]] virtual std::int64_t payload_bytes(std::int64_t elements,
                                                   at::ScalarType type) const = 0;
  // Writes `input` [elements] to `payload` [payload_bytes()], bytes.
  virtual void encode(const at::Tensor& input, const at::Tensor& payload,
                      const DrawKey& key) const = 0;
  // Adds what a payload says to `sum` [elements], of the input's type.
  virtual void add_decoded(const at::Tensor& payload, const at::Tensor& sum,
                           const DrawKey& key) const = 0;
  // Throws DataError unless bytes of another process are a payload of so many elements.
  void check_payload(const at::Tensor& payload, std::int64_t elements, at::ScalarType type) const;

 private:
  // Does so for what lies in a payload of the right size.
  virtual void check_content(const at::Tensor&, std::int64_t, at::ScalarType) const {}
};

// Make codecs, as compressors.h describes them for averages. `seed` is the same on both sides.
[[nodiscard]] std::shared_ptr<const Codec> bf16_codec();
[[nodiscard]] std::shared_ptr<const Codec> fp16_codec();
[[nodiscard]] std::shared_ptr<const Codec> int8_codec(std::int64_t block = 256);
[[nodiscard]] std::shared_ptr<const Codec> qsgd_codec(std::int64_t levels = 127,
                                                      std::uint64_t seed = 0);
[[nodiscard]] std::shared_ptr<const Codec> top_k_codec(double fraction = 0.01);
// Places differ from sender to sender.
[[nodiscard]] std::shared_ptr<const Codec> random_k_codec(double fraction = 0.01,
                                                          std::uint64_t seed = 0);

namespace detail {

// Returns `bytes`, rounded up to a multiple of 8: payloads lie end to end.
[[nodiscard]] constexpr std::int64_t padded_bytes(std::int64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

}  // namespace detail
}  // namespace troika
