#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/rendezvous/agreement.h>
#include <troika/rendezvous/failure_report.h>
#include <troika/rendezvous/loopback.h>
#include <troika/rendezvous/rendezvous.h>
#include <troika/rendezvous/store_connections.h>
#include <troika/rendezvous/wait_notice.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

namespace troika {
namespace {

using Json = nlohmann::json;

std::string key_of(std::string_view what, int rank) {
  return std::string(what) + "/" + std::to_string(rank);
}

std::vector<std::string> keys_of_all(std::string_view what, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(key_of(what, rank));
  return keys;
}

Store open_store(const World& world, const Deadline& deadline) {
  if (world.store_host != StoreHost::kRankZero || world.rank != 0) {
    return Store::connect(world.store, deadline);
  }
  reserve_store_connections(world.size, 0, "rank 0, which keeps the store for ");
  if (world.listening) return Store::host(std::move(*world.listening));
  return Store::host(world.store.port,
                     names_loopback(world.store.host) ? Reach::kThisHost : Reach::kEveryHost);
}

// Waits for "<what>/<rank>" of all ranks; otherwise throws, naming those that are missing.
void wait_for_all(Store& store, std::string_view what, const World& world, std::string_view lacking,
                  const Deadline& deadline) {
  const auto without = [&] {
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size; ++rank) {
      if (!store.is_set(key_of(what, rank))) ranks.push_back(rank);
    }
    return ranks;
  };
  const auto keys = keys_of_all(what, world.size);
  const auto waited_for = [&] {
    return "ranks " + list_ranks(without()) + " of " + std::to_string(world.size) + " to have " +
           std::string(lacking);
  };
  const bool tells = world.rank == 0;  // once is enough
  if (tells ? wait_with_notice(store, keys, deadline, waited_for) : store.wait(keys, deadline)) {
    return;
  }
  const std::vector<int> missing = without();
  if (missing.empty()) return;  // the last has come just now
  const bool one = missing.size() == 1;
  const double seconds = deadline.timeout().count();
  throw RendezvousError(
      (one ? "rank " : "ranks ") + list_ranks(missing) + " of " + std::to_string(world.size) +
          (one ? " has" : " have") + " not " + std::string(lacking) + " after " +
          format_fixed(seconds, seconds < 10 && seconds != std::floor(seconds)) + " s",
      "look at what those ranks printed last, or raise "
      "comm.rendezvous_timeout_seconds if they are slow to start");
}

// Whether this process has claimed the rank before, or tried to.
bool claimed_before(const World& world) {
  static std::mutex mutex;
  static std::set<std::string> claims;
  const std::lock_guard lock(mutex);
  return !claims.insert(key_of(world.store.describe() + "/" + world.job, world.rank)).second;
}

struct Announcement {
  Member member;
  std::string version;
  std::string recipe_hash;
};

std::string write(const Announcement& announcement) {
  const Member& member = announcement.member;
  return Json{{"host", member.host},
              {"host_identity", member.host_identity},
              {"address", member.address},
              {"pid", member.pid},
              {"version", announcement.version},
              {"recipe_hash", announcement.recipe_hash}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What a rank announces that cannot begin, with the failure behind it.
constexpr std::string_view kCannotBegin = "cannot begin\n";

// What comes from the network is checked like what comes from a file.
Announcement read(const std::string& text, int rank) {
  if (text.starts_with(kCannotBegin))
    throw_failure(decode_failure(text.substr(kCannotBegin.size())));
  try {
    const Json json = Json::parse(text);
    return {{rank, json.at("host"), json.at("host_identity"), json.at("address"), json.at("pid")},
            json.at("version"),
            json.at("recipe_hash")};
  } catch (const Json::exception&) {
    throw RendezvousError(
        "rank " + std::to_string(rank) + " has announced itself with " + quote(text),
        "do all ranks run the same version of troika?");
  }
}

// The ranks whose announcement differs from rank 0's in one field.
std::vector<int> dissenters(const std::vector<Announcement>& all,
                            std::string Announcement::*field) {
  std::vector<int> ranks;
  for (const Announcement& one : all) {
    if (one.*field != all[0].*field) ranks.push_back(one.member.rank);
  }
  return ranks;
}

std::string name_dissenters(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_ranks(ranks) +
         (ranks.size() == 1 ? " disagrees" : " disagree") + " with rank 0";
}

void check_agreement(const std::vector<Announcement>& all, const Agreement& own, Store& store) {
  if (const auto ranks = dissenters(all, &Announcement::version); !ranks.empty()) {
    const Announcement& other = all[static_cast<std::size_t>(ranks[0])];
    throw RendezvousError(name_dissenters(ranks) + " on the version of troika: " + other.version +
                              " on host " + other.member.host + ", " + all[0].version +
                              " on host " + all[0].member.host,
                          "install the same version on all hosts");
  }
  if (const auto ranks = dissenters(all, &Announcement::recipe_hash); !ranks.empty()) {
    const auto recipes = store.get_all({key_of("recipe", 0), key_of("recipe", ranks[0])});
    throw RendezvousError(name_dissenters(ranks) + " on " + own.title + ": " +
                              first_difference(recipes[0], recipes[1], "on rank 0",
                                               "on rank " + std::to_string(ranks[0])),
                          own.hint);
  }
}

// Fills in who shares a host with whom, where the launcher has not said so. Hosts are numbered in
// the order of their first rank.
void locate(World& world, const std::vector<Member>& members) {
  std::vector<std::string> hosts;
  const auto& own = members[static_cast<std::size_t>(world.rank)].host_identity;
  int before = 0, on_host = 0;
  for (const Member& member : members) {
    if (std::find(hosts.begin(), hosts.end(), member.host_identity) == hosts.end()) {
      hosts.push_back(member.host_identity);
    }
    if (member.host_identity != own) continue;
    ++on_host;
    before += member.rank < world.rank;
  }
  if (world.local_size <= 0 || world.local_rank < 0) {
    world.local_rank = before;
    world.local_size = on_host;
  }
  if (world.nodes <= 0 || world.node_rank < 0) {
    world.node_rank = static_cast<int>(std::find(hosts.begin(), hosts.end(), own) - hosts.begin());
    world.nodes = static_cast<int>(hosts.size());
  }
}

}  // namespace

Store open_job_store(const World& world, const Deadline& deadline) {
  return open_store(world, deadline).with_prefix(key_prefix(world.job));
}

void report_failure(const World& world, const Failure& failure, const Deadline& deadline) {
  if (world.size == 1) return;
  Failure told = failure;
  told.message =
      "rank " + std::to_string(world.rank) + " on host " + world.host + ": " + told.message;
  Store store = open_job_store(world, deadline);
  if (store.add(key_of("claims", world.rank), 1) > 1) return;
  store.set(key_of("left", world.rank), "");
  store.set(key_of("member", world.rank), std::string(kCannotBegin) + encode(told));
  const bool keeps_store = world.store_host == StoreHost::kRankZero && world.rank == 0;
  if (!keeps_store || !store.wait(keys_of_all("member", world.size), deadline)) return;
  (void)store.wait(keys_of_all("left", world.size),
                   Deadline::in(failure_timing::kReadBeforeStoreGoes));
}

Rendezvous::Rendezvous(World world, std::optional<Store> store)
    : world_(std::move(world)), store_(std::move(store)) {}

Rendezvous Rendezvous::join(World world, const Agreement& agreement, const Deadline& deadline) {
  if (world.size == 1) {
    Rendezvous alone(std::move(world), std::nullopt);
    alone.members_ = {{0, alone.world_.host, host_identity(), "", getpid()}};
    locate(alone.world_, alone.members_);
    return alone;
  }
  Store store = open_job_store(world, deadline);
  Rendezvous rendezvous(std::move(world), std::move(store));
  rendezvous.announce(agreement);
  rendezvous.wait_for_members(agreement, deadline);
  return rendezvous;
}

void Rendezvous::announce(const Agreement& agreement) {
  const int rank = world_.rank;
  const bool is_again = claimed_before(world_);
  if (store_->add(key_of("claims", rank), 1) > 1) {
    if (is_again) {
      throw RendezvousError("this process has joined this job before, or tried to, as rank " +
                                std::to_string(rank) + " of " + std::to_string(world_.size),
                            "a process joins once: keep the Session, whose copies share it, and "
                            "after a failure start the job again");
    }
    throw RendezvousError("two processes claim to be rank " + std::to_string(rank) + " of " +
                              std::to_string(world_.size) + " at " + world_.store.describe() +
                              "; this one is on host " + world_.host,
                          "give each process its own RANK, and each job its own MASTER_PORT");
  }
  if (store_->is_set(key_of("member", rank))) {  // the others have given up: it says why
    (void)read(store_->get_all({key_of("member", rank)}).front(), rank);
  }
  store_->set(key_of("recipe", rank), agreement.recipe);
  const Member member{rank, world_.host, host_identity(), local_address_towards(world_.store),
                      getpid()};
  store_->set(key_of("member", rank),
              write({member, agreement.version, hex(content_hash(agreement.recipe))}));
}

void Rendezvous::wait_for_members(const Agreement& agreement, const Deadline& deadline) {
  try {
    wait_for_all(*store_, "member", world_, "come", deadline);
    std::vector<Announcement> all;
    for (const std::string& text : store_->get_all(keys_of_all("member", world_.size))) {
      all.push_back(read(text, static_cast<int>(all.size())));
      members_.push_back(all.back().member);
    }
    check_agreement(all, agreement, *store_);
  } catch (const Error& error) {
    leave_failed(failure_of(error));
    throw;
  }
  locate(world_, members_);
}

// The other ranks are to read why, before the store goes with this process: those that still wait
// for missing ranks read the failure in place of what these would have announced.
void Rendezvous::leave_failed(const Failure& failure) {
  try {
    for (int rank = 0; hosts_store() && rank < world_.size; ++rank) {
      if (store_->is_set(key_of("member", rank))) continue;
      store_->set(key_of("left", rank), "");
      store_->set(key_of("member", rank), std::string(kCannotBegin) + encode(failure));
    }
    store_->set(key_of("left", world_.rank), "");
    if (!hosts_store()) return;
    (void)store_->wait(keys_of_all("left", world_.size),
                       Deadline::in(failure_timing::kReadBeforeStoreGoes));
    // The failure counts, not that of a store that is gone with another rank.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const Error&) {
  }
}

bool Rendezvous::hosts_store() const {
  return world_.store_host == StoreHost::kRankZero && world_.rank == 0;
}

Store& Rendezvous::store() {
  check(store_.has_value(), "a world of one rank has no store");
  return *store_;
}

void Rendezvous::leave(const Deadline& deadline) {
  if (!store_) return;
  store_->set(key_of("left", world_.rank), "");
  if (hosts_store()) wait_for_all(*store_, "left", world_, "finished", deadline);
}

int Rendezvous::ranks_on_host() const {
  const std::string& own = members_.at(static_cast<std::size_t>(world_.rank)).host_identity;
  return static_cast<int>(std::ranges::count(members_, own, &Member::host_identity));
}

}  // namespace troika
