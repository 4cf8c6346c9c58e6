// The C functions on several ranks, where one of them does not come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/troika.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "rank_helper.h"
#include "support/reserved_port.h"

namespace troika::test {
namespace {

// A session whose store rank 0 keeps, as that of a job under torchrun's variables.
troika_session* open_session(Rank& rank, double timeout_seconds) {
  std::optional<ReservedPort> reserved;
  if (rank.index() == 0) {
    reserved.emplace();
    rank.store().set("port", std::to_string(reserved->port()));
  }
  const std::string port = rank.store().get("port", Deadline::in(Seconds(30)));
  setenv("RANK", std::to_string(rank.index()).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(rank.size()).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", port.c_str(), 1);
  troika_options options = {};
  options.timeout_seconds = timeout_seconds;
  options.rendezvous_timeout_seconds = 30;
  troika_session* session = nullptr;
  EXPECT_EQ(troika_open(&options, &session), TROIKA_OK) << troika_last_error();
  return session;
}

// Rank 1 comes to no collective before rank 0 has closed: neither waits for the other to leave.
RANK_TEST(CApiRanks, ClosingAfterAMissingRankWaitsForNobody, 2) {
  troika_session* session = open_session(rank, rank.index() == 0 ? 0.5 : 30);
  double value = 1;
  const auto add_up = [&] {
    return troika_all_reduce(session, &value, 1, TROIKA_DOUBLE, TROIKA_SUM, "sum");
  };
  if (rank.index() == 1) rank.meet("rank 0 has closed");
  EXPECT_EQ(add_up(), TROIKA_RENDEZVOUS);
  EXPECT_EQ(add_up(), TROIKA_RENDEZVOUS);
  EXPECT_THAT(std::string(troika_last_error()), testing::HasSubstr("sum"));
  EXPECT_EQ(troika_close(session), TROIKA_OK) << troika_last_error();
  if (rank.index() == 0) rank.meet("rank 0 has closed");
}

}  // namespace
}  // namespace troika::test
