#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/vectorize.h>
#include <troika/optim/publish.h>

#include <type_traits>

namespace troika {
namespace {

template <typename V, typename T>
void round_to(const Piece& piece, std::int64_t offset, std::int64_t count) {
  const T* __restrict from = piece.master.const_data_ptr<T>() + offset;
  V* __restrict to = piece.value.mutable_data_ptr<V>() + offset;
  vectorized([=] {
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<V, T>) {
        to[i] = from[i];
      } else {
        to[i] = static_cast<V>(static_cast<float>(from[i]));
      }
    }
  });
}

}  // namespace

template <typename T>
void publish_chunk(const Piece& piece, std::int64_t offset, std::int64_t count) {
  if (piece.value.const_data_ptr() == piece.master.const_data_ptr()) return;
  switch (piece.value.scalar_type()) {
    case at::kBFloat16:
      return round_to<at::BFloat16, T>(piece, offset, count);
    case at::kHalf:
      return round_to<at::Half, T>(piece, offset, count);
    default:
      check(piece.value.scalar_type() == piece.master.scalar_type(),
            "working copies that are neither bf16 nor fp16");
      return round_to<T, T>(piece, offset, count);
  }
}

template void publish_chunk<float>(const Piece&, std::int64_t, std::int64_t);
template void publish_chunk<double>(const Piece&, std::int64_t, std::int64_t);

}  // namespace troika
