// Has the processor fetch a line of memory into its cache while the thread goes on. Of no effect on
// what is in memory; an address that is not mapped is allowed.
#pragma once

namespace troika {

// Compilers leave out loops of __builtin_prefetch alone, as they do nothing that counts; the empty
// statements are taken for something.
inline void prefetch_line(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

// So that a store to it finds no copies in other cores' caches to wait for.
inline void prefetch_line_to_write(const void* address) {
#if defined(__x86_64__)
  // Where the builtin is the same as for reading, but for a compiler that is told of a processor
  // that has this. Those that do not have it ignore it.
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1);
  asm volatile("");
#endif
}

}  // namespace troika
