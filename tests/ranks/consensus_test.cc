// What ranks that differ throw together.
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/session/consensus.h>

#include <numeric>
#include <string>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

RANK_FUNCTION(fails_on_some) {
  std::vector<int> ranks(static_cast<std::size_t>(rank.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Session session = Session::on(make_group("world", ranks, rank.index(), rank.options()));
  std::string told = "nothing";
  try {
    run_on_all_ranks(
        session,
        [&] {
          if (rank.index() == 1) throw StorageError("no space in a", "free some");
          if (rank.index() > 1) throw DataError("no file 'b'", "look for it");
        },
        "start");
  } catch (const StorageError& error) {
    told = std::string(error.what()) + " | " + error.hint();
  }
  rank.report("error", told);
  const auto difference =
      find_difference(session, rank.index() % 2 == 0 ? "even" : "odd", "parity");
  rank.report("difference", !difference
                                ? "none"
                                : difference->of_rank_zero + " against " + difference->theirs.text +
                                      " on " + ranks_in_words(difference->theirs.ranks));
}

TEST(Consensus, IsTheSameErrorOnEveryRank) {
  for (const RankResult& each : expect_ranks("fails_on_some", 4)) {
    EXPECT_EQ(each.values.at("error"),
              "no space in a, on rank 1; no file 'b', on ranks 2 and 3 | free some");
    EXPECT_EQ(each.values.at("difference"), "even against odd on ranks 1 and 3");
  }
}

}  // namespace
}  // namespace troika::test
