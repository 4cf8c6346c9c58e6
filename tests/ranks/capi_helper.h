// Sessions of the C interface between the ranks of a test.
#pragma once

#include <gtest/gtest.h>
#include <troika/troika.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "own_mpi.h"
#include "rank_helper.h"
#include "support/reserved_port.h"

namespace troika::test {

// Sets the variables of a job under torchrun, whose store rank 0 is to keep. Collective. Keep what
// it returns until the session is open.
[[nodiscard]] inline std::unique_ptr<ReservedPort> set_world(Rank& rank) {
  static int worlds = 0;
  const std::string key = "port " + std::to_string(worlds++);
  std::unique_ptr<ReservedPort> reserved;
  if (rank.index() == 0) {
    reserved = std::make_unique<ReservedPort>();
    rank.store().set(key, std::to_string(reserved->port()));
  }
  const std::string port = rank.store().get(key, Deadline::in(Seconds(30)));
  setenv("RANK", std::to_string(rank.index()).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(rank.size()).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", port.c_str(), 1);
  return reserved;
}

// Opens a session of all ranks.
inline troika_session* open_session(Rank& rank, double timeout_seconds,
                                    const char* engine = nullptr) {
  const auto reserved = set_world(rank);
  troika_options options = {};
  options.engine = engine;
  options.timeout_seconds = timeout_seconds;
  options.rendezvous_timeout_seconds = 30;
  troika_session* session = nullptr;
  EXPECT_EQ(troika_open(&options, &session), TROIKA_OK) << troika_last_error();
  return session;
}

// Opens a session of all ranks on the program's MPI.
inline troika_session* open_session_over(const OwnMpi& mpi, const char* engine) {
  troika_options options = {};
  options.engine = engine;
  options.timeout_seconds = options.rendezvous_timeout_seconds = 30;
  troika_session* session = nullptr;
  EXPECT_EQ(troika_open_mpi(mpi.world(), &options, &session), TROIKA_OK) << troika_last_error();
  return session;
}

// Checks the status and the line of a call that fails.
inline void expect_told(int status, int expected, const std::string& line) {
  EXPECT_EQ(status, expected);
  EXPECT_EQ(std::string(troika_last_error()), line);
}

}  // namespace troika::test
