#include <gtest/gtest.h>
#include <troika/base/failure.h>

#include <new>
#include <stdexcept>
#include <system_error>

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

// As std::thread and std::async throw it.
TEST(Failure, OfAThreadThatCannotStartNamesTheLimit) {
  const Failure thread = failure_of(
      std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  EXPECT_EQ(thread.code, ExitCode::kUsage);
  EXPECT_EQ(thread.message, "too many processes and threads: this process cannot start another");
  EXPECT_NE(thread.hint.find("fewer ranks"), std::string::npos);
  EXPECT_EQ(failure_of(std::system_error(std::make_error_code(std::errc::io_error))).code,
            ExitCode::kInternal);
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

TEST(Failure, TravelsAsOneText) {
  for (const Failure& each :
       {Failure{ExitCode::kStorage, "disk \"x\" is\nfull", "free some", false},
        Failure{ExitCode::kRendezvous, "rank 1 is late", "", true},
        Failure{ExitCode::kInterrupted, "", "", false}}) {
    const Failure back = decode_failure(encode(each));
    EXPECT_EQ(back.code, each.code);
    EXPECT_EQ(back.message, each.message);
    EXPECT_EQ(back.hint, each.hint);
    EXPECT_EQ(back.secondary, each.secondary);
  }
}

TEST(Failure, IsReadFromWhatPeopleWrite) {
  const Failure alone = decode_failure("the loss is not finite");
  EXPECT_EQ(alone.code, ExitCode::kRendezvous);
  EXPECT_EQ(alone.message, "the loss is not finite");
  EXPECT_EQ(alone.hint, "");
  EXPECT_TRUE(alone.secondary);
  const Failure hinted = decode_failure("the loss is not finite\nlower it\n");
  EXPECT_EQ(hinted.hint, "lower it");
  EXPECT_TRUE(hinted.secondary);
  EXPECT_EQ(decode_failure("a\nb\n999").code, ExitCode::kInternal);
  EXPECT_EQ(decode_failure("").message, "");
}

TEST(Failure, IsThrownAsItsType) {
  EXPECT_THROW(throw_failure({ExitCode::kUsage, "a", ""}), UsageError);
  EXPECT_THROW(throw_failure({ExitCode::kData, "a", ""}), DataError);
  EXPECT_THROW(throw_failure({ExitCode::kStorage, "a", ""}), StorageError);
  EXPECT_THROW(throw_failure({ExitCode::kRankDied, "a", ""}), RankDiedError);
  EXPECT_THROW(throw_failure(peer_failure("a")), PeerError);
  try {
    throw_failure({ExitCode::kCheckpointed, "saved", "go on"});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCheckpointed);
    EXPECT_EQ(error.hint(), "go on");
  }
}

}  // namespace
}  // namespace troika
