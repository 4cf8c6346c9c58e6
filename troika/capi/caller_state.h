// What a call of troika/troika.h changes for the time of its work and gives back when it returns:
// the thread of the caller is a part of a simulation, which has settings of its own.
#pragma once

#include <cfenv>
#include <clocale>
#include <vector>

namespace troika {

// Takes note of the caller's settings for as long as it lives, and gives them back at its end:
// - threads: OpenMP's number for parallel regions of this thread, which the BLAS of LibTorch heeds,
//   is the session's own in between;
// - floating point: no traps, rounding to nearest, and denormal numbers as they are in between,
//   also in the other threads of OpenMP. A sum has the same bits in every program then. The
//   caller's flags of exceptions stay as they were;
// - locale: numbers are read and written with points in between.
class CallerState {
 public:
  CallerState();
  ~CallerState();
  CallerState(const CallerState&) = delete;
  CallerState& operator=(const CallerState&) = delete;

  // Computes with so many threads from now on.
  void use_threads(int threads);

 private:
  int threads_;
  std::fenv_t floating_point_ = {};
  std::vector<std::fenv_t> of_threads_;  // of OpenMP's threads, where theirs had to be changed
  locale_t locale_;
};

}  // namespace troika
