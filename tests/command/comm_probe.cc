// Joins a job, whoever has started it, sums a tensor over all ranks a few times, and prints
//   comm {"rank": 0, "size": 4, "engine": "shm+gloo", "right": true, "seconds": 0.12}
// with the median time of one sum. For tests of engines between hosts and under launchers.
//   comm_probe ENGINE MEGABYTES ROUNDS [TIMEOUT [LEAVER]]
// Rank LEAVER ends well after two rounds, whatever the others wait for.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/config/recipe.h>
#include <troika/session/session.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace troika {
namespace {

EngineKind engine_named(const std::string& name) {
  const std::map<std::string, EngineKind> engines = {{"auto", EngineKind::kAuto},
                                                     {"shm", EngineKind::kShm},
                                                     {"gloo", EngineKind::kGloo},
                                                     {"mpi", EngineKind::kMpi}};
  return engines.at(name);
}

int probe(const std::string& engine, std::int64_t megabytes, int rounds, Seconds timeout,
          int leaver) {
  SessionOptions options;
  options.engine = engine_named(engine);
  options.rendezvous_timeout = Seconds(30);
  options.timeout = timeout;
  const Session session = Session::from_environment(options);
  at::Tensor tensor = at::ones({megabytes << 18});
  std::vector<double> seconds;
  bool right = true;
  for (int round = 0; round < rounds; ++round) {
    if (round == 2 && session.rank() == leaver) return 0;
    tensor.fill_(session.rank() + 1 + round);
    session.barrier("round");
    const auto start = Clock::now();
    session.world().all_reduce(tensor, ReduceOp::kSum, session.call("sum")).wait();
    seconds.push_back(Seconds(Clock::now() - start).count());
    const int size = session.size();
    right = right && at::all(tensor == size * (size + 1) / 2 + size * round).item<bool>();
  }
  std::sort(seconds.begin(), seconds.end());
  std::ostringstream text;
  text << "comm {\"rank\": " << session.rank() << ", \"size\": " << session.size()
       << ", \"engine\": \"" << session.world().engine_name()
       << "\", \"right\": " << (right ? "true" : "false")
       << ", \"seconds\": " << seconds[seconds.size() / 2] << "}\n";
  const std::string line = text.str();
  // In one piece: many ranks write to one pipe.
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::perror("comm_probe");
  session.leave();
  return 0;
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) {
  if (argc < 4 || argc > 6) {
    std::cerr << "usage: comm_probe ENGINE MEGABYTES ROUNDS [TIMEOUT [LEAVER]]\n";
    return 2;
  }
  try {
    const troika::Seconds timeout(argc >= 5 ? std::stod(argv[4]) : 60.0);
    const int leaver = argc == 6 ? std::stoi(argv[5]) : -1;
    return troika::probe(argv[1], std::stoll(argv[2]), std::stoi(argv[3]), timeout, leaver);
  } catch (const troika::Error& error) {
    std::cerr << "comm_probe: " << error.what() << "\n";
    if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << "\n";
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "comm_probe: " << error.what() << "\n";
    return 1;
  }
}
