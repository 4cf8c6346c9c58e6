#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/bootstrap/network.h>
#include <troika/comm/mpi/backoff.h>
#include <troika/comm/mpi/bootstrap.h>
#include <troika/comm/mpi/library.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <vector>

namespace troika {
namespace {

// What a member tells the others.
struct PeerInfo {
  static constexpr std::size_t kBytes = 1024;
  std::string host_identity;
  std::string address;  // of rank 0: where the store will be
  std::string job;

  [[nodiscard]] std::string text() const {
    return host_identity + "\n" + address + "\n" + job + "\n";
  }
  static PeerInfo from(std::string_view text) {
    std::array<std::string, 3> lines;
    for (std::string& line : lines) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return {lines[0], lines[1], lines[2]};
  }
};

// At which other hosts are likely to reach this one.
std::string outside_address(const std::string& host) {
  const auto wanted = requested_interface();
  for (const NetworkInterface& each : network_interfaces()) {
    if (each.addresses.empty() || (wanted ? each.name != *wanted : each.loopback || !each.up)) {
      continue;
    }
    const auto v4 = std::ranges::find_if(each.addresses, [](const std::string& address) {
      return address.find(':') == std::string::npos;
    });
    return v4 != each.addresses.end() ? *v4 : each.addresses.front();
  }
  return host;
}

// Of rank 0, which has opened the store's port.
PeerInfo info_of_keeper(const ListeningSocket& listening, const std::string& host) {
  const std::uint16_t port = listening.port;
  return {.host_identity = host_identity(),
          .address = Endpoint{outside_address(host), port}.describe(),
          .job = "mpi-" + host + "-" + std::to_string(getpid()) + "-" + std::to_string(port)};
}

bool are_on_one_host(const std::vector<PeerInfo>& infos) {
  return std::ranges::all_of(infos, [&](const PeerInfo& info) {
    return info.host_identity == infos.front().host_identity;
  });
}

constexpr const char* kAllOpen =
    "opening a session is collective: every rank of the communicator must do it";

// Above it, who has come is not told: each member sends each other a message for it.
constexpr int kLargestRollCall = 256;

// Waits until all members have come.
void wait_for_members(mpi::Communicator& communicator, const Deadline& deadline) {
  if (communicator.size() > kLargestRollCall) return;
  std::vector<std::unique_ptr<mpi::Request>> arrivals = communicator.roll_call();
  std::vector<int> missing(arrivals.size());
  std::iota(missing.begin(), missing.end(), 0);
  mpi::Backoff backoff;
  while (true) {
    std::erase_if(missing,
                  [&](int member) { return arrivals[static_cast<std::size_t>(member)]->test(); });
    if (missing.empty()) return;
    backoff.pause();
    if (deadline.passed()) break;
  }
  communicator.keep();
  for (auto& each : arrivals) static_cast<void>(each.release());  // MPI may still write to them
  std::erase(missing, communicator.rank());
  const bool one = missing.size() == 1;
  throw RendezvousError((one ? "rank " : "ranks ") + list_ranks(missing) +
                            " of the communicator (" + std::to_string(communicator.size()) +
                            " ranks) " + (one ? "has" : "have") + " not come within " +
                            format_fixed(deadline.timeout().count(), 1) + " s",
                        kAllOpen);
}

std::vector<PeerInfo> gather_infos(mpi::Communicator& communicator, const PeerInfo& own,
                                   const Deadline& deadline) {
  struct Exchanged {
    std::string sent, all;
  };
  auto exchanged = std::make_unique<Exchanged>();
  std::string& all = exchanged->all;
  exchanged->sent = own.text();
  exchanged->sent.resize(PeerInfo::kBytes, '\0');
  all.resize(PeerInfo::kBytes * static_cast<std::size_t>(communicator.size()), '\0');
  const auto request =
      communicator.all_gather(all.data(), exchanged->sent.data(), PeerInfo::kBytes);
  mpi::Backoff backoff;
  while (!request->test()) {
    backoff.pause();
    if (!deadline.passed()) continue;
    communicator.keep();
    (void)exchanged.release();  // MPI may still write there
    throw RendezvousError("not all ranks of the communicator (" +
                              std::to_string(communicator.size()) + ") have come within " +
                              format_fixed(deadline.timeout().count(), 1) +
                              " s, or a rank has given up before this one came",
                          kAllOpen);
  }
  std::vector<PeerInfo> infos;
  for (std::size_t start = 0; start < all.size(); start += PeerInfo::kBytes) {
    infos.push_back(PeerInfo::from(std::string_view(all).substr(start, PeerInfo::kBytes)));
  }
  return infos;
}

World make_world(int rank, const std::string& host, const std::vector<PeerInfo>& infos) {
  World world;
  world.rank = rank;
  world.size = static_cast<int>(infos.size());
  world.host = host;
  world.store = parse_endpoint(infos.front().address, "the address of rank 0");
  if (are_on_one_host(infos)) world.store.host = "127.0.0.1";
  world.store_host = StoreHost::kRankZero;
  world.source = "mpi";
  world.job = infos.front().job;
  return world;
}

}  // namespace

World world_of_communicator(int fortran_handle, const Deadline& deadline) {
  mpi::MpiPlugin& plugin = mpi::plugin();
  const std::string host = Environment::of_process().host().name;
  try {
    if (!plugin.started()) {
      throw UsageError("a session on a communicator needs MPI to be initialised",
                       "call MPI_Init before opening it");
    }
    const auto communicator = plugin.of_program(fortran_handle);
    wait_for_members(*communicator, deadline);
    // Ranks of one host need no port that others reach: who is where comes before the port.
    PeerInfo own{.host_identity = host_identity(), .address = {}, .job = {}};
    const bool one_host = are_on_one_host(gather_infos(*communicator, own, deadline));
    std::shared_ptr<ListeningSocket> listening;
    if (communicator->rank() == 0) {
      const Reach reach = one_host ? Reach::kThisHost : Reach::kEveryHost;
      listening = std::make_shared<ListeningSocket>(bind_port(0, reach));
      own = info_of_keeper(*listening, host);
    }
    World world =
        make_world(communicator->rank(), host, gather_infos(*communicator, own, deadline));
    world.listening = std::move(listening);
    return world;
  } catch (const mpi::MpiError& failure) {
    throw UsageError(std::string("the communicator cannot be used: ") + failure.what(),
                     "hand in what MPI_Comm_c2f returns, or the integer of a Fortran program");
  }
}

}  // namespace troika
