#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <troika/base/error.h>
#include <troika/base/open_file_limit.h>

#include <cerrno>
#include <string>

namespace troika {
namespace {

using ::testing::HasSubstr;

// While it lives, this process has these limits; the hard one can be lowered only once.
class ScopedLimit {
 public:
  explicit ScopedLimit(rlim_t soft) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{soft, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ScopedLimit(const ScopedLimit&) = delete;
  ScopedLimit& operator=(const ScopedLimit&) = delete;
  ~ScopedLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  [[nodiscard]] rlim_t hard() const { return before_.rlim_max; }

 private:
  rlimit before_{};
};

rlim_t soft_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

TEST(OpenFileLimit, IsRaisedByWhatIsWanted) {
  const ScopedLimit limit(32);
  reserve_open_files(10, 100, "a test");
  EXPECT_GT(soft_limit(), 100U);
  EXPECT_LT(soft_limit(), 200U);
}

TEST(OpenFileLimit, StaysWhereItSuffices) {
  const ScopedLimit limit(500);
  reserve_open_files(10, 100, "a test");
  EXPECT_EQ(soft_limit(), 500U);
}

TEST(OpenFileLimit, BeyondTheHardOneIsAnError) {
  const ScopedLimit limit(32);
  if (limit.hard() == RLIM_INFINITY) GTEST_SKIP() << "this account has no limit";
  try {
    reserve_open_files(limit.hard(), limit.hard(), "the launcher of 8 ranks");
    FAIL() << "it has been raised";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("too many open files: the launcher of 8 ranks needs "));
    EXPECT_THAT(error.what(), HasSubstr("and the limit is " + std::to_string(limit.hard())));
    EXPECT_THAT(error.hint(), HasSubstr("ulimit -n"));
  }
}

TEST(OpenFileLimit, IsNamedWhereACallHasFailedByIt) {
  EXPECT_NO_THROW(check_open_files(EACCES, "rank 0"));
  EXPECT_THROW(check_open_files(EMFILE, "rank 0"), UsageError);
  EXPECT_THROW(check_open_files(ENFILE, "rank 0"), UsageError);
}

}  // namespace
}  // namespace troika
