#include <gtest/gtest.h>
#include <troika/rpc/refusal_notice.h>

namespace troika::detail {
namespace {

TEST(RefusalNotice, IsOneLineAMinute) {
  RefusalNotice notice;
  EXPECT_EQ(notice.add("10.0.0.2:80", "it is empty", 100),
            "a request was refused: it is empty (from 10.0.0.2:80)");
  for (int i = 0; i < 59; ++i) EXPECT_FALSE(notice.add("10.0.0.3:80", "it is empty", 100 + i));
  EXPECT_EQ(notice.add("10.0.0.4:80", "the request of 10.0.0.4:80 is cut", 160),
            "60 more requests were refused, the last one: the request of 10.0.0.4:80 is cut");
  EXPECT_FALSE(notice.add("10.0.0.4:80", "it is empty", 219.9));
  EXPECT_EQ(notice.add("10.0.0.4:80", "it is empty", 220),
            "2 more requests were refused, the last one: it is empty (from 10.0.0.4:80)");
  EXPECT_EQ(notice.add("10.0.0.5:80", "it is empty", 900),
            "a request was refused: it is empty (from 10.0.0.5:80)");
}

}  // namespace
}  // namespace troika::detail
