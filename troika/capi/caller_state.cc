#include <ATen/Parallel.h>
#include <troika/capi/caller_state.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

// Of OpenMP's run time. Its header comes with one compiler, and others do not find it.
extern "C" {
int omp_get_max_threads();
int omp_get_thread_num();
void omp_set_num_threads(int threads);
}

namespace troika {
namespace {

// Returns whether this thread computes as every process does at its start.
bool computes_as_usual() {
#ifdef __SSE__
  constexpr unsigned kFlags = 0x3f, kUsual = 0x1f80;  // of MXCSR, which also flushes denormals
  if ((_mm_getcsr() & ~kFlags) != kUsual) return false;
#endif
#ifdef __GLIBC__
  if (fegetexcept() != 0) return false;
#endif
  return std::fegetround() == FE_TONEAREST;
}

locale_t locale_of_numbers() {
  static const locale_t kC = newlocale(LC_ALL_MASK, "C", nullptr);
  return kC;
}

}  // namespace

CallerState::CallerState() {
  threads_ = omp_get_max_threads();
  (void)at::get_num_threads();  // sets OpenMP's number when a thread first asks
  const bool as_usual = computes_as_usual();
  std::fegetenv(&floating_point_);
  if (!as_usual && threads_ > 1) {
    // The threads of a program that traps have been started with its traps. One that has not taken
    // part here, and takes part at the end, gets what this thread has.
    of_threads_.assign(static_cast<std::size_t>(threads_), floating_point_);
#pragma omp parallel num_threads(threads_)
    {
      std::fegetenv(&of_threads_[static_cast<std::size_t>(omp_get_thread_num())]);
      std::fesetenv(FE_DFL_ENV);
    }
  }
  std::fesetenv(FE_DFL_ENV);
  locale_ = uselocale(locale_of_numbers());
}

void CallerState::use_threads(int threads) {
  omp_set_num_threads(threads);
}

CallerState::~CallerState() {
  uselocale(locale_);
  omp_set_num_threads(threads_);
  if (!of_threads_.empty()) {
#pragma omp parallel num_threads(threads_)
    std::fesetenv(&of_threads_[static_cast<std::size_t>(omp_get_thread_num())]);
  }
  std::fesetenv(&floating_point_);
}

}  // namespace troika
