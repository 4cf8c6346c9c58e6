// main() of the test program, and of each of its ranks: the environment says which.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <troika/base/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string_view>

#include "ranks/fork_server.h"
#include "ranks/rank_files.h"
#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

std::map<std::string, RankFunction>& functions() {
  static std::map<std::string, RankFunction> functions;
  return functions;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set");
  return value;
}

std::map<std::string, std::string> arguments_of_environment() {
  std::map<std::string, std::string> arguments;
  for (char** each = environ; *each != nullptr; ++each) {
    std::string_view text = *each;
    if (!text.starts_with(kArgumentPrefix)) continue;
    text.remove_prefix(std::string_view(kArgumentPrefix).size());
    const std::size_t at = text.find('=');
    arguments[std::string(text.substr(0, at))] = text.substr(at + 1);
  }
  return arguments;
}

int number(const char* name) {
  return std::stoi(variable(name));
}

// mpirun numbers the ranks itself.
int index_of_environment() {
  for (const char* name : {kRankVariable, "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) return number(name);
  }
  throw std::runtime_error("the rank's index is not given");
}

Rank rank_of_environment(int index) {
  const Endpoint endpoint{"127.0.0.1", static_cast<std::uint16_t>(number(kPortVariable))};
  RankOptions options;
  options.engine = variable(kEngineVariable);
  options.arguments = arguments_of_environment();
  options.reduction_order =
      static_cast<EngineOptions::ReductionOrder>(number(kReductionOrderVariable));
  options.pretend = static_cast<Pretend>(number(kPretendVariable));
  return Rank(index, options, number(kSizeVariable),
              Store::connect(endpoint, Deadline::in(Seconds(30))), variable(kFolderVariable));
}

// Expectations outside of a TEST are collected by GoogleTest too.
int run_function(Rank& rank) {
  try {
    at::set_num_threads(1);
    functions().at(variable(kFunctionVariable))(rank);
  } catch (const Error& error) {
    std::cerr << error.what() << "\n" << error.hint() << std::endl;
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}

int run_rank() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int index = index_of_environment();
  if (Rank::under_mpirun()) {
    const int output = open(output_path(variable(kFolderVariable), index).c_str(),
                            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  try {
    Rank rank = rank_of_environment(index);
    const int code = run_function(rank);
    if (Rank::under_mpirun()) {
      std::ofstream(exit_code_path(rank.folder(), index)) << code << std::flush;
      rank.wait_for_all("the end");  // MPI may end the whole job when one rank has ended
    }
    return code;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}

}  // namespace

Rank::Rank(int index, RankOptions options, int size, Store store, std::filesystem::path folder)
    : index_(index),
      options_(std::move(options)),
      size_(size),
      store_(std::move(store)),
      folder_(std::move(folder)) {}

bool Rank::under_mpirun() {
  return std::getenv(kRankVariable) == nullptr;
}

void Rank::report(const std::string& name, const std::string& value) const {
  std::string line = name + "=" + value;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::ofstream(values_path(folder_, index_), std::ios::app) << line << "\n" << std::flush;
}

EngineOptions Rank::options() const {
  EngineOptions options;
  options.engine = options_.engine;
  options.reduction_order = options_.reduction_order;
  if (options_.pretend == Pretend::kTwoHostsInTurn) {
    options.host_of = [](int rank) { return rank % 2; };
  } else if (options_.pretend == Pretend::kOneAloneAndTheRest) {
    options.host_of = [](int rank) { return rank == 0 ? 0 : 1; };
  } else if (options_.pretend == Pretend::kThreeHostsInTurn) {
    options.host_of = [](int rank) { return rank % 3; };
  }
  options.store = &store_;
  options.rendezvous_timeout = Seconds(30);
  return options;
}

Group Rank::group(const std::string& axis) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) ranks.push_back(rank);
  return make_group(axis, ranks, index_, options());
}

void Rank::wait_for_all(const std::string& where) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) keys.push_back(where + "/" + std::to_string(rank));
  store_.set(keys[static_cast<std::size_t>(index_)], "here");
  if (!store_.wait(keys, Deadline::in(Seconds(30)))) {
    throw RendezvousError("not all ranks have come to " + where);
  }
}

RankRegistration::RankRegistration(const char* name, RankFunction function) {
  functions().emplace(name, function);
}

}  // namespace troika::test

int main(int argc, char** argv) {
  setenv("TROIKA_PLUGINS", TROIKA_TEST_PLUGINS, 0);  // those of this build
  testing::InitGoogleTest(&argc, argv);
  if (std::getenv(troika::test::kFunctionVariable)) return troika::test::run_rank();  // mpirun's
  const troika::test::ForkServer server(troika::test::run_rank);
  return RUN_ALL_TESTS();
}
