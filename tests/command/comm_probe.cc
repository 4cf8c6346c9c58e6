// Joins a job under any launcher, sums a tensor over all ranks a few times, and prints
//   comm {"rank": 0, "size": 4, "engine": "shm+gloo", "right": true, "seconds": 0.12}
// with the median time of one sum. For tests of engines between hosts and under launchers.
//   comm_probe ENGINE MEGABYTES ROUNDS [TIMEOUT [RANK [leaves|loops|broadcasts|halves]]]
// After two rounds RANK ends well, whatever the others wait for; or computes without end, enters
// another operation, or sums a tensor half as large.
#include <ATen/ATen.h>
#include <troika/session/session.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "probe.h"

namespace troika {
namespace {

// What one rank does instead of what the others do.
struct Deviation {
  int rank = -1;
  std::string how = "leaves";
};

[[noreturn]] void loop() {
  volatile bool forever = true;
  while (forever) {
  }
  std::abort();
}

int probe(const std::string& engine, std::int64_t megabytes, int rounds, Seconds timeout,
          const Deviation& deviation) {
  SessionOptions options;
  options.engine = engine;
  options.rendezvous_timeout = Seconds(30);
  options.timeout = timeout;
  const Session session = Session::from_environment(options);
  at::Tensor tensor = at::ones({megabytes << 18});
  std::vector<double> seconds;
  bool right = true;
  for (int round = 0; round < rounds; ++round) {
    const bool deviates = round == 2 && session.rank() == deviation.rank;
    if (deviates && deviation.how == "leaves") return 0;
    tensor.fill_(session.rank() + 1 + round);
    session.barrier("round");
    const auto start = Clock::now();
    if (deviates && deviation.how == "loops") loop();
    if (deviates && deviation.how == "broadcasts") {
      session.world().broadcast(tensor, 0, session.call("weights")).wait();
    }
    const at::Tensor part =
        deviates && deviation.how == "halves" ? tensor.narrow(0, 0, tensor.numel() / 2) : tensor;
    session.world().all_reduce(part, ReduceOp::kSum, session.call("sum")).wait();
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
  test::say(text.str());
  session.leave();
  return 0;
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) {
  if (argc < 4 || argc > 7) {
    std::cerr << "usage: comm_probe ENGINE MEGABYTES ROUNDS [TIMEOUT [RANK [HOW]]]\n";
    return 2;
  }
  return troika::test::status_of("comm_probe", [&] {
    const troika::Seconds timeout(argc >= 5 ? std::stod(argv[4]) : 60.0);
    troika::Deviation deviation;
    if (argc >= 6) deviation.rank = std::stoi(argv[5]);
    if (argc >= 7) deviation.how = argv[6];
    return troika::probe(argv[1], std::stoll(argv[2]), std::stoi(argv[3]), timeout, deviation);
  });
}
