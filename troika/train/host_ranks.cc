#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/file_identity.h>
#include <troika/base/hash.h>
#include <troika/observe/machine.h>
#include <troika/train/host_ranks.h>
#include <troika/train/job.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

namespace troika {
namespace {

std::optional<Group> group_of_host(const Job& job) {
  if (job.size() == 1) return std::nullopt;
  const auto self = static_cast<std::size_t>(job.rank());
  const auto own = static_cast<std::int64_t>(paths_fingerprint(job.members()[self].host_identity));
  const auto all = job.gather(own, {"places of the ranks", job.start_deadline()});
  std::vector<int> ranks;
  int index = 0;
  for (int rank = 0; rank < job.size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] != own) continue;
    if (rank == job.rank()) index = static_cast<int>(ranks.size());
    ranks.push_back(rank);
  }
  if (ranks.size() == 1) return std::nullopt;
  if (std::ssize(ranks) == job.size()) return job.world();
  return job.session().make_group("host", ranks, index);
}

// The others wait, so that their cores are free.
class ThreadsOfAll {
 public:
  explicit ThreadsOfAll(int ranks) : before_(at::get_num_threads()) {
    const int wanted = std::min(usable_cores(), before_ * ranks);
    if (wanted > before_) at::set_num_threads(wanted);
  }
  ThreadsOfAll(const ThreadsOfAll&) = delete;
  ThreadsOfAll& operator=(const ThreadsOfAll&) = delete;
  ~ThreadsOfAll() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }

 private:
  int before_;
};

}  // namespace

std::uint64_t paths_fingerprint(const std::string& host_identity) {
  std::array<char, 128> mounts{};
  const ssize_t length = ::readlink("/proc/self/ns/mnt", mounts.data(), mounts.size());
  const auto root = FileIdentity::of("/"), current = FileIdentity::of(".");
  if (length <= 0 || !root || !current) {
    std::random_device entropy;
    return std::uint64_t{entropy()} << 32 | entropy();
  }
  return content_hash(host_identity + "\n" +
                      std::string(mounts.data(), static_cast<std::size_t>(length)) + "\n" +
                      root->file() + " " + current->file() + " " + std::to_string(::geteuid()));
}

HostRanks::HostRanks(MakeGroup make_group, Seconds patience, Seconds apart)
    : make_group_(std::move(make_group)), patience_(patience), apart_(apart) {}

HostRanks::HostRanks(const Job& job)
    : HostRanks([&job] { return group_of_host(job); }, job.start_patience()) {}

int HostRanks::ranks() {
  if (!std::exchange(is_known_, true)) group_ = make_group_();
  return group_ ? group_->size() : 1;
}

std::string HostRanks::once(std::string_view label, const Make& make) {
  if (ranks() == 1) return make([] {});
  return group_->rank() == 0 ? work(label, make) : wait_for_work(label);
}

std::string HostRanks::work(std::string_view label, const Make& make) {
  std::string result;
  try {
    const ThreadsOfAll threads(group_->size());
    auto sent = Clock::now();
    result = make([&] {
      if (Clock::now() - sent < apart_) return;
      send(label, Sign::kGoesOn, "");
      sent = Clock::now();
    });
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    // The group of an error of another rank is no use to any of them.
    if (!failure.secondary) send(label, Sign::kFailed, encode(failure));
    throw;
  }
  send(label, Sign::kDone, result);
  return result;
}

void HostRanks::send(std::string_view label, Sign sign, std::string_view text) {
  const at::Tensor head = at::tensor(
      {static_cast<std::int64_t>(sign), static_cast<std::int64_t>(text.size())}, at::kLong);
  group_->broadcast(head, 0, call(label)).wait();
  if (text.empty()) return;
  const at::Tensor body = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::ranges::copy(text, body.mutable_data_ptr<std::uint8_t>());
  group_->broadcast(body, 0, call(label)).wait();
}

std::string HostRanks::wait_for_work(std::string_view label) {
  for (;;) {
    const at::Tensor head = at::zeros({2}, at::kLong);
    group_->broadcast(head, 0, call(label)).wait();
    const auto sign = static_cast<Sign>(head[0].item<std::int64_t>());
    if (sign == Sign::kGoesOn) continue;
    std::string text(static_cast<std::size_t>(head[1].item<std::int64_t>()), '\0');
    if (!text.empty()) {
      const at::Tensor body = at::empty({std::ssize(text)}, at::kByte);
      group_->broadcast(body, 0, call(label)).wait();
      std::copy_n(body.const_data_ptr<std::uint8_t>(), text.size(), text.begin());
    }
    if (sign == Sign::kFailed) throw_failure(decode_failure(text));
    return text;
  }
}

void HostRanks::wait_for_all(std::string_view label) {
  if (ranks() > 1) group_->barrier(call(label)).wait();
}

std::unique_ptr<Dataset> open_data_of(const Job& job, const Recipe& recipe) {
  HostRanks host(job);
  return open_dataset(recipe.data, traits_of(recipe.model).sample,
                      static_cast<std::uint64_t>(recipe.seed), host);
}

}  // namespace troika
