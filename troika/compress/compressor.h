// Internal. What compressors have in common: what they keep of each bucket, error feedback, and how
// a step that is not applied leaves no trace.
#pragma once

#include <troika/compress/bucket_hook.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

class Compressor : public BucketHook {
 public:
  [[nodiscard]] Work start(const GradientBucket& bucket) final;
  void finish(const GradientBucket& bucket) final;
  void end_step(bool applied) final;
  [[nodiscard]] BucketMemory* memory(const GradientBucket& bucket) final;

 protected:
  enum class Feedback { kNone, kKept };
  explicit Compressor(Feedback feedback) : feedback_(feedback) {}

  // A bucket under way.
  struct Entry {
    std::vector<BucketPart> parts;
    std::int64_t elements = 0;
    at::ScalarType type = at::kFloat;  // of the gradients
    BucketMemory now;                  // before the step
    BucketMemory next;                 // after it, if it is applied
    bool pending = false;              // a step has been started that has not ended
    std::array<at::Tensor, 2> wire;    // bytes that peers can read
    at::Tensor indices;                // of what is sent; for the compressor
  };
  // Starts to send `input`: the gradients, with feedback plus the error, in fp32 or fp64. With
  // feedback subtracts from it what it sends, here or in receive(); it is entry.next.error then.
  [[nodiscard]] virtual Work send(const GradientBucket& bucket, Entry& entry,
                                  const at::Tensor& input) = 0;
  // Leaves the average of what has been sent in `average`, of the input's size and type.
  virtual void receive(const GradientBucket& bucket, Entry& entry, const at::Tensor& average) = 0;
  // Fills in what it keeps beside errors, at the start.
  virtual void prepare(const GradientBucket&, Entry&) const {}

  [[nodiscard]] bool has_feedback() const { return feedback_ == Feedback::kKept; }
  // Returns one of the two buffers of a bucket, made when it is first used.
  [[nodiscard]] static at::Tensor buffer(const GradientBucket& bucket, Entry& entry,
                                         std::size_t which, std::int64_t elements,
                                         at::ScalarType type);
  // Returns the type that a bucket is computed in.
  [[nodiscard]] static at::ScalarType type_of(const GradientBucket& bucket);

 private:
  [[nodiscard]] Entry& entry_of(const GradientBucket& bucket);

  Feedback feedback_;
  std::vector<Entry> entries_;  // by bucket
};

// Returns ceil(fraction * elements), at least one and at most all.
[[nodiscard]] std::int64_t share_of(double fraction, std::int64_t elements);

// Returns the key of the draws for a bucket.
[[nodiscard]] std::uint64_t draw_key(std::uint64_t seed, std::string_view what, int bucket);

}  // namespace troika::detail
