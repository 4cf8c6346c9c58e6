// Kernels on the host, so that their arithmetic is tested where there is no GPU. Included before a
// kernel's source (.cu), it gives that the words of CUDA's language: a block's threads are
// contexts that take turns, and change at __syncthreads(). Blocks come one after another. What only
// a GPU shows (races, memory, speed) it does not show.
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>
#include <ucontext.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

// Names of CUDA's.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
#undef __shared__
#define __shared__ static

inline dim3 threadIdx, blockIdx, blockDim, gridDim;
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

namespace troika::test {

// The threads of a block.
class EmulatedBlock {
 public:
  explicit EmulatedBlock(unsigned threads) : threads_(threads) {
    for (Thread& thread : threads_) thread.stack = std::make_unique<char[]>(kStack);
  }

  // Runs `body` once for each thread, with threadIdx set.
  void run(const std::function<void()>& body) {
    current = this;
    body_ = &body;
    for (Thread& thread : threads_) begin(thread);
    for (bool any = true; any;) {
      any = false;
      for (unsigned i = 0; i < threads_.size(); ++i) {
        if (threads_[i].done) continue;
        any = true;
        turn_ = i;
        threadIdx = dim3(i);
        swapcontext(&scheduler_, &threads_[i].context);
      }
    }
  }

  // Lets all other threads come to the same point.
  static void wait() { swapcontext(&current->thread().context, &current->scheduler_); }

  // Returns the value that the thread `offset` lanes away has.
  template <class T>
  static T exchange(T value, int offset) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::memcpy(&current->thread().shown, &value, sizeof(T));
    wait();
    std::memcpy(&value, &current->threads_[threadIdx.x ^ static_cast<unsigned>(offset)].shown,
                sizeof(T));
    wait();
    return value;
  }

 private:
  static constexpr std::size_t kStack = std::size_t{64} << 10;

  struct Thread {
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    std::uint64_t shown = 0;
    bool done = false;
  };

  Thread& thread() { return threads_[turn_]; }

  void begin(Thread& thread) {
    thread.done = false;
    getcontext(&thread.context);
    thread.context.uc_stack = {.ss_sp = thread.stack.get(), .ss_flags = 0, .ss_size = kStack};
    thread.context.uc_link = &scheduler_;
    makecontext(&thread.context, &EmulatedBlock::run_thread, 0);
  }

  static void run_thread() {
    (*current->body_)();
    current->thread().done = true;
  }

  inline static EmulatedBlock* current = nullptr;
  std::vector<Thread> threads_;
  ucontext_t scheduler_{};
  const std::function<void()>* body_ = nullptr;
  unsigned turn_ = 0;
};

}  // namespace troika::test

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
inline void __syncthreads() {
  troika::test::EmulatedBlock::wait();
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int offset) {
  return troika::test::EmulatedBlock::exchange(value, offset);
}

inline std::uint32_t __umulhi(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32);
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

#include <troika/ops/cuda/common.cuh>

namespace troika::ops::cuda {

template <class... Parameters>
void start(void (*kernel)(Parameters...), dim3 grid, cudaStream_t, Parameters... arguments) {
  test::EmulatedBlock block(kThreads);
  gridDim = grid;
  blockDim = dim3(kThreads);
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      blockIdx = dim3(x, y);
      block.run([&] { kernel(arguments...); });
    }
  }
}

}  // namespace troika::ops::cuda
