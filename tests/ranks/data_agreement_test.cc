// Ranks that read other data than most are named before the first step, or once contents are known.
#include <gtest/gtest.h>
#include <support/compared_words.h>
#include <troika/base/error.h>
#include <troika/train/data_agreement.h>

#include <memory>
#include <string>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

constexpr Seconds kPatience(30);

// Data of this rank, by rank.
std::shared_ptr<ComparedWords> own(const Rank& rank, const std::vector<std::string>& files,
                                   const std::vector<std::string>& contents,
                                   const std::vector<std::string>& places) {
  const auto self = static_cast<std::size_t>(rank.index());
  return std::make_shared<ComparedWords>("rank " + std::to_string(rank.index()), files[self],
                                         contents[self], places[self]);
}

template <class Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const DataError& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "";
}

RANK_TEST(DataAgreement, NamesTheRankThatDiffersFromMost, 3) {
  const Session session = Session::on(rank.group());
  const auto files = [&](const std::vector<std::string>& words) {
    return refusal([&] {
      DataAgreement(session, kPatience, own(rank, words, words, {"a", "a", "a"}));
    });
  };
  EXPECT_EQ(files({"x", "x", "x"}), "");
  EXPECT_EQ(files({"x", "x", "y"}),
            "rank 2 has other data than rank 0 and 1 more rank: y is not x | copy them");
  EXPECT_EQ(files({"y", "x", "x"}),
            "rank 0 has other data than rank 1 and 1 more rank: y is not x | copy them");
  // No two are alike.
  EXPECT_EQ(files({"x", "y", "z"}), "rank 1 has other data than rank 0: y is not x | copy them");
}

RANK_TEST(DataAgreement, ComparesContentsOnceAllHaveReadThem, 3) {
  const Session session = Session::on(rank.group());
  const std::vector<std::string> files(3, "x");
  // Two of the three read the very same files: one of them is asked.
  const auto data = own(rank, files, {"c", "not asked", "d"}, {"a", "a", "b"});
  DataAgreement agreement(session, kPatience, data);
  EXPECT_TRUE(agreement.is_open());
  EXPECT_TRUE(agreement.is_hashed());
  agreement.after_step({.data_hashed = false});
  EXPECT_TRUE(agreement.is_open());
  EXPECT_EQ(refusal([&] { agreement.after_step({.data_hashed = true}); }),
            "rank 2 has other data than rank 0: d is not c | copy them");
  EXPECT_EQ(data->asked() > 0, rank.index() != 1);
  EXPECT_FALSE(agreement.is_open());

  DataAgreement same(session, kPatience, own(rank, files, {"c", "c", "c"}, {"a", "b", "c"}));
  EXPECT_TRUE(same.is_open());
  EXPECT_EQ(refusal([&] { same.after_step({.data_hashed = true}); }), "");
  EXPECT_FALSE(same.is_open());
  EXPECT_FALSE(same.is_hashed());

  const DataAgreement shared(session, kPatience,
                             own(rank, files, {"c", "d", "e"}, {"a", "a", "a"}));
  EXPECT_FALSE(shared.is_open());
}

}  // namespace
}  // namespace troika::test
