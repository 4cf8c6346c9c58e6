// The caller's thread and process are as they were before a call; and what is computed in between
// does not depend on their settings.
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <cfenv>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <locale>
#include <optional>
#include <string>
#include <vector>

#include <support/caller_settings.h>
#include <support/temporary_folder.h>

namespace troika {
namespace {

using test::CallerSettings;

// Makes every call with what `set` sets, and checks the settings after each. Returns the losses.
std::vector<double> losses_with(const std::function<void()>& set) {
  const TemporaryFolder folder;
  std::optional<CallerSettings> before;
  const auto begin = [&] {
    set();
    before.emplace();
  };
  const auto open = [](troika_session** session) {
    troika_options options = {};
    options.threads = 2;
    return troika_open_alone(&options, session);
  };
  return test::call_everything(open, folder.path(), begin, [&](const std::string& call) {
    EXPECT_EQ(CallerSettings().changed_from(*before), "") << "after " << call;
  });
}

class CallerKeeps : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!test::device_type_here()) {
      std::printf(
          "Not compared: the current device, because there is none beside the host. "
          "DeviceArrays.LeaveTheCurrentDevice does on the test device.\n");
    }
  }
  void TearDown() override {
    std::fesetenv(FE_DFL_ENV);
    omp_set_num_threads(threads_);
    std::locale::global(std::locale::classic());
    std::setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
    umask(umask_);
    std::filesystem::current_path(folder_);
  }
  const int threads_ = omp_get_max_threads();
  const mode_t umask_ = umask(022);
  const std::filesystem::path folder_ = std::filesystem::current_path();
};

TEST_F(CallerKeeps, OpenMpsThreads) {
  const std::vector<double> usual = losses_with([] { omp_set_num_threads(3); });
  EXPECT_EQ(usual, losses_with([] { omp_set_num_threads(1); }));
}

TEST_F(CallerKeeps, FloatingPointModes) {
  const std::vector<double> usual = losses_with([] {});
  EXPECT_EQ(usual, losses_with([] { std::fesetround(FE_UPWARD); }));
  EXPECT_EQ(usual, losses_with([] { feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW); }));
#ifdef __SSE__
  EXPECT_EQ(usual, losses_with([] { _mm_setcsr(_mm_getcsr() | 0x8040); }));  // flush denormals
#endif
}

TEST_F(CallerKeeps, TheProcess) {
  const TemporaryFolder folder;
  const std::vector<double> usual = losses_with([] {});
  EXPECT_EQ(usual, losses_with([&] {
              umask(077);
              std::filesystem::current_path(folder.path());
              std::signal(SIGUSR2, SIG_IGN);
            }));
  std::signal(SIGUSR2, SIG_DFL);
}

// A comma for a point, and points between thousands, in what C functions and streams of C++ read
// and write.
TEST_F(CallerKeeps, Locale) {
  const std::vector<double> usual = losses_with([] {});
  const TemporaryFolder folder;
  constexpr const char* kGerman = "de_DE.UTF-8";
  const std::string make =
      "localedef -i de_DE -f UTF-8 '" + (folder.path() / kGerman).string() + "' > /dev/null 2>&1";
  if (std::system(make.c_str()) != 0) {  // NOLINT(cert-env33-c): of the test's own
    GTEST_SKIP() << "localedef cannot make a locale with a decimal comma here: its program or its "
                    "sources are missing";
  }
  setenv("LOCPATH", folder.path().c_str(), 1);
  ASSERT_NE(std::setlocale(LC_ALL, kGerman), nullptr);
  char text[8];
  std::snprintf(text, sizeof(text), "%.1f", 0.5);
  ASSERT_STREQ(text, "0,5");
  EXPECT_EQ(usual, losses_with([] {}));
  std::locale::global(std::locale(kGerman));
  EXPECT_EQ(usual, losses_with([] {}));
}

}  // namespace
}  // namespace troika
