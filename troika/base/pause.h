// What a thread does between two looks at a word that another core is about to write.
#pragma once

namespace troika {

#if defined(__x86_64__) || defined(__i386__)
inline void pause_core() {
  __builtin_ia32_pause();
}
#elif defined(__aarch64__)
inline void pause_core() {
  asm volatile("yield");
}
#else
inline void pause_core() {}
#endif

}  // namespace troika
