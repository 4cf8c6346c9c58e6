// Runs a function on several ranks, each a process of its own: this very program as it was before
// it did anything (fork_server.h). What a rank prints, reports and dies of comes back. To write a
// test, put a file named *_test.cc beside this one:
//
//   RANK_TEST(Gloo, SumsUp, 1, 2, 5) {  // on 1 rank, on 2, on 5
//     const Group group = rank.group();
//     at::Tensor x = at::full({3}, rank.index());
//     group.all_reduce(x, ReduceOp::kSum, rank.call("x")).wait();
//     EXPECT_EQ(x[0].item<double>(), rank.size() * (rank.size() - 1) / 2);
//   }
//
// An expectation that fails, or an exception, fails the test with the number of the rank and what
// it printed. For a test about ranks that fail, name the function and look at the results:
//
//   RANK_FUNCTION(dies_in_the_middle) { if (rank.index() == 1) raise(SIGKILL); ... }
//   TEST(Gloo, ToleratesADeath) {
//     const auto results = run_ranks("dies_in_the_middle", 3);
//     EXPECT_EQ(results[1].signal, SIGKILL);
//   }
//
// With RankOptions::mpirun a real mpirun starts the ranks; a rank that it kills has no exit code of
// its own, and is said to have ended by SIGKILL.
//
// A function runs with one thread for ATen, and all ranks are killed when the deadline passes or
// the test program ends.
#pragma once

#include <gtest/gtest.h>
#include <troika/base/time.h>
#include <troika/comm/engines.h>
#include <troika/comm/group.h>
#include <troika/rendezvous/store.h>

#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace troika::test {

// Hosts that the ranks of this one pretend to be on.
enum class Pretend { kNothing, kTwoHostsInTurn, kOneAloneAndTheRest, kThreeHostsInTurn };

struct RankOptions {
  Seconds deadline = Seconds(60);  // for all ranks together
  std::string engine{kAutoEngine};
  std::map<std::string, std::string> arguments = {};  // for the function; no line breaks
  EngineOptions::ReductionOrder reduction_order = EngineOptions::ReductionOrder::kFastest;
  Pretend pretend = Pretend::kNothing;
  std::string mpirun = {};  // starts the ranks, if there is one
};

// What became of a rank.
struct RankResult {
  int exit_code = 0;                          // when it ended on its own
  int signal = 0;                             // when it was killed
  bool timed_out = false;                     // when it was we who killed it
  std::string output;                         // on stdout and stderr
  std::map<std::string, std::string> values;  // that it reported
  [[nodiscard]] bool ok() const { return exit_code == 0 && signal == 0; }
  // "Segmentation fault", and what it printed.
  [[nodiscard]] std::string account() const;
};

// The rank that a function runs on.
class Rank {
 public:
  Rank(int index, RankOptions options, int size, Store store, std::filesystem::path folder);

  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] int size() const { return size_; }
  // Kept by the test program.
  [[nodiscard]] Store& store() { return store_; }
  // Shared by all ranks, and removed after the test.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  // Throws std::out_of_range if the test gave none.
  [[nodiscard]] const std::string& argument(const std::string& name) const {
    return options_.arguments.at(name);
  }
  // Returns whether reductions are in the order of ranks with this engine, rather than host by
  // host.
  [[nodiscard]] bool reduces_in_order() const {
    return options_.pretend == Pretend::kNothing ||
           options_.reduction_order == EngineOptions::ReductionOrder::kInOrder;
  }
  // For RankResult::values, also of a rank that dies later.
  void report(const std::string& name, const std::string& value) const;

  // Returns whether it is one of an MPI job, which ends as a whole.
  [[nodiscard]] static bool under_mpirun();
  // For all ranks, with the test's engine.
  [[nodiscard]] EngineOptions options() const;
  [[nodiscard]] Group group(const std::string& axis = "data") const;
  // With a deadline of 30 seconds; `label` must be a literal.
  [[nodiscard]] static Call call(std::string_view label) { return call(label, Seconds(30)); }
  [[nodiscard]] static Call call(std::string_view label, Seconds timeout) {
    return {label, Deadline::in(timeout)};
  }
  // Waits until all ranks are here, through the store.
  void wait_for_all(const std::string& where);

 private:
  int index_;
  RankOptions options_;
  int size_;
  Store store_;
  std::filesystem::path folder_;
};

using RankFunction = void (*)(Rank& rank);

// Makes a function known by a name; both must be static.
struct RankRegistration {
  RankRegistration(const char* name, RankFunction function);
};

// Runs a function on `size` ranks and returns what became of each.
[[nodiscard]] std::vector<RankResult> run_ranks(const std::string& function, int size,
                                                const RankOptions& options = {});
// The same; adds a failure to the current test for each rank that was not ok.
std::vector<RankResult> expect_ranks(const std::string& function, int size,
                                     const RankOptions& options = {});

// For tests with an engine as their parameter: all that ranks of one host can use but `fake`.
[[nodiscard]] std::vector<std::string> usable_engines();
[[nodiscard]] std::string engine_name(const testing::TestParamInfo<std::string>& info);

// An engine as tests take it for their parameter, with how its ranks are started.
struct TestedEngine {
  std::string name;
  RankOptions options;
  std::vector<int> sizes = {};  // on which it is worth its time; all if empty
};
inline std::ostream& operator<<(std::ostream& out, const TestedEngine& engine) {
  return out << engine.name;
}
// All that this machine can use but `fake`: each engine of a single host; the one across hosts,
// with three ways to pretend them; and, for each plug-in whose mpirun is installed, MPI and the one
// across hosts over it.
[[nodiscard]] std::vector<TestedEngine> tested_engines();
// Of these, MPI alone.
[[nodiscard]] std::vector<TestedEngine> tested_mpi_engines();

}  // namespace troika::test

#define RANK_FUNCTION(name)                                                                      \
  static void rank_function_##name(::troika::test::Rank& rank);                                  \
  static const ::troika::test::RankRegistration rank_registration_##name(#name,                  \
                                                                         &rank_function_##name); \
  static void rank_function_##name([[maybe_unused]] ::troika::test::Rank& rank)

#define RANK_TEST(suite, name, ...)                                                 \
  static void rank_function_##suite##_##name(::troika::test::Rank& rank);           \
  static const ::troika::test::RankRegistration rank_registration_##suite##_##name( \
      #suite "." #name, &rank_function_##suite##_##name);                           \
  TEST(suite, name) {                                                               \
    for (const int ranks : {__VA_ARGS__}) {                                         \
      ::troika::test::expect_ranks(#suite "." #name, ranks);                        \
    }                                                                               \
  }                                                                                 \
  static void rank_function_##suite##_##name([[maybe_unused]] ::troika::test::Rank& rank)
