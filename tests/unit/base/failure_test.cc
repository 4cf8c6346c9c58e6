#include <gtest/gtest.h>
#include <troika/base/failure.h>

#include <new>
#include <stdexcept>

namespace troika {
namespace {

TEST(Failure, KeepsWhatATypedErrorSaid) {
  const Failure data = failure_of(DataError("no data", "get some"));
  EXPECT_EQ(data.code, ExitCode::kData);
  EXPECT_EQ(data.message, "no data");
  EXPECT_EQ(data.hint, "get some");
  EXPECT_FALSE(data.secondary);
  EXPECT_FALSE(failure_of(RendezvousError("nobody came")).secondary);
  EXPECT_TRUE(failure_of(PeerError("gone")).secondary);
  EXPECT_TRUE(failure_of(DeadlineError("late")).secondary);
}

TEST(Failure, OfMemorySaysHowMuchWasWanted) {
  const auto message = [](const char* text) {
    return failure_of(std::runtime_error(text)).message;
  };
  EXPECT_EQ(message("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
                    "allocate memory: you tried to allocate 3298534883328 bytes. Error code 12 "
                    "(Cannot allocate memory)\nframe #0: c10::ThrowEnforceNotMet\nframe #1: x"),
            "out of memory: 3.0 TiB asked for at once");
  EXPECT_EQ(message("DefaultCPUAllocator: not enough memory: you tried to allocate x bytes."),
            "out of memory");
  EXPECT_EQ(message("Storage size calculation overflowed with sizes=[9, 9]\nException raised"),
            "out of memory");
  const Failure plain = failure_of(std::bad_alloc());
  EXPECT_EQ(plain.code, ExitCode::kInternal);
  EXPECT_EQ(plain.message, "out of memory");
  EXPECT_EQ(plain.hint, "a smaller model, micro_batch_size or seq_len needs less");
}

TEST(Failure, OfAnyOtherKindIsOneLine) {
  const Failure odd = failure_of(std::runtime_error(
      "self must be a matrix\nException raised from mm at Blas.cpp:1\nframe #0"));
  EXPECT_EQ(odd.code, ExitCode::kInternal);
  EXPECT_EQ(odd.message, "internal error: self must be a matrix");
  EXPECT_NE(odd.hint.find("report it"), std::string::npos);
  EXPECT_EQ(failure_of(std::runtime_error("[enforce fail at a.cc:1] x == 0. it is one")).message,
            "internal error: it is one");
  EXPECT_EQ(failure_of(std::runtime_error("[enforce fail at a.cc:1] x == 0")).message,
            "internal error: x == 0");
}

}  // namespace
}  // namespace troika
