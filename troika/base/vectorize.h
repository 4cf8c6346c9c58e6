// Runs a loop with the vectors of the machine it finds itself on. The loop is compiled twice, for
// the oldest processor we support and for AVX2; neither fuses a multiplication with an addition, so
// both give the same bits.
#pragma once

namespace troika::detail {

#if defined(__x86_64__) && defined(__GNUC__)
template <typename Loop>
[[gnu::target("avx2"), gnu::flatten, gnu::noinline]] void run_wide(const Loop& loop) {
  loop();
}
[[nodiscard]] inline bool has_wide_vectors() {
  return __builtin_cpu_supports("avx2") != 0;
}
#else
template <typename Loop>
void run_wide(const Loop& loop) {
  loop();
}
[[nodiscard]] inline bool has_wide_vectors() {
  return false;
}
#endif

}  // namespace troika::detail

namespace troika {

// Calls `loop()`, whose body the compiler can vectorise once it is inlined.
template <typename Loop>
void vectorized(const Loop& loop) {
  if (detail::has_wide_vectors()) {
    detail::run_wide(loop);
  } else {
    loop();
  }
}

}  // namespace troika
