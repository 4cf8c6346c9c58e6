#include <troika/base/error.h>
#include <troika/session/islands.h>

#include <string>
#include <vector>

namespace troika {

Islands make_islands(const Session& session, int ranks) {
  if (ranks < 1 || session.size() % ranks != 0) {
    throw UsageError(
        "islands of " + std::to_string(ranks) + " ranks among " + std::to_string(session.size()),
        "take a number that divides that of the ranks");
  }
  const int island = session.rank() / ranks, place = session.rank() % ranks;
  const int islands = session.size() / ranks;
  std::vector<int> inside, across;
  for (int i = 0; i < ranks; ++i) inside.push_back(island * ranks + i);
  for (int i = 0; i < islands; ++i) across.push_back(i * ranks + place);
  return {Session::on(session.make_group("island", inside, place), session.timeout()),
          Session::on(session.make_group("islands", across, island), session.timeout()), island,
          islands};
}

}  // namespace troika
