// Has the processor fetch a line of memory into its cache while the thread goes on. Of no effect on
// what is in memory; an address that is not mapped is allowed.
#pragma once

namespace troika {

// Fetches a line that is going to be read. The empty statement keeps compilers from leaving out a
// loop of __builtin_prefetch alone, which has no effect that they count.
inline void prefetch_line(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

// Fetches a line that is going to be written. A store to it then finds no copies in other cores'
// caches to wait for.
inline void prefetch_line_to_write(const void* address) {
#if defined(__x86_64__)
  // The builtin is the same as for reading, unless the compiler targets a processor that has this
  // instruction. Processors without it ignore it.
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1);
  asm volatile("");
#endif
}

}  // namespace troika
