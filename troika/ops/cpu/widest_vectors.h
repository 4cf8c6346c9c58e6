// Internal: runs a loop with AVX-512 where the machine has it, else as base/vectorize.h does. Its
// fused multiplications and additions would give other bits: sources that include this are compiled
// with -ffp-contract=off, and every machine gives the same.
#pragma once

#include <troika/base/vectorize.h>

namespace troika::ops::detail {

#if defined(__x86_64__) && defined(__GNUC__)
template <typename Loop>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), gnu::flatten, gnu::noinline]] void run_widest(
    const Loop& loop) {
  loop();
}
[[nodiscard]] inline bool has_widest_vectors() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}
#else
template <typename Loop>
void run_widest(const Loop& loop) {
  loop();
}
[[nodiscard]] inline bool has_widest_vectors() {
  return false;
}
#endif

}  // namespace troika::ops::detail

namespace troika::ops {

// Calls `loop()`, whose body the compiler can vectorise once it is inlined.
template <typename Loop>
void vectorized_widely(const Loop& loop) {
  if (detail::has_widest_vectors()) {
    detail::run_widest(loop);
  } else {
    vectorized(loop);
  }
}

}  // namespace troika::ops
