#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/device/device.h>
#include <troika/device/facts.h>
#include <troika/observe/log.h>
#include <troika/observe/machine.h>
#include <troika/param/rounding.h>
#include <troika/session/rank_name.h>
#include <troika/session/session.h>
#include <troika/train/replica_comparison.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

namespace troika {
namespace {

at::Tensor on_host(const at::Tensor& tensor) {
  return to_host(tensor.detach()).contiguous();
}

std::int64_t digest_of(const at::Tensor& tensor) {
  const at::Tensor values = on_host(tensor);
  return static_cast<std::int64_t>(content_hash(
      std::span(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes())));
}

// "rank 0 on host a, rank 1 on host b and rank 2 on host c"
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  return text;
}

// Replicas that may differ: of each a number that is equal for those with the same bits.
using Classes = std::vector<std::int64_t>;

class Comparison {
 public:
  Comparison(const Group& replicas, ReplicaValues values, const ReplicaRank& own, Seconds timeout)
      : replicas_(replicas), values_(values), own_(own), session_(Session::on(replicas, timeout)) {}

  std::optional<Failure> run() {
    std::vector<std::int64_t> own;
    for_each([&](const std::string&, const at::Tensor& value) { own.push_back(digest_of(value)); });
    const at::Tensor digests = at::tensor(own, at::kLong);
    // One number tells whether there is anything to look for.
    const at::Tensor all = all_of(at::full({1}, digest_of(digests), at::kLong));
    if ((all == all[0]).all().item<bool>()) return std::nullopt;
    const at::Tensor by_rank = all_of(digests).view({replicas_.size(), digests.numel()});
    const at::Tensor equal = (by_rank == by_rank[0]).all(0);
    names_ = session_.gather(own_.name, "names of ranks");
    kinds_ = kinds_of_ranks();
    std::optional<Failure> failure;
    std::int64_t index = 0;
    for_each([&](const std::string& name, const at::Tensor& value) {
      const std::int64_t here = index++;
      if (failure || equal[here].item<bool>()) return;
      Classes classes(static_cast<std::size_t>(replicas_.size()));
      const at::Tensor column = by_rank.select(1, here).contiguous();
      std::copy_n(column.const_data_ptr<std::int64_t>(), classes.size(), classes.begin());
      failure = compare_values(name, value, std::move(classes));
    });
    if (!mended_.empty() && !failure) values_.arena.publish();
    if (!mended_.empty() && replicas_.rank() == 0) log_mended();
    return failure;
  }

 private:
  // Calls `act` with every parameter and buffer, in an order that all replicas have.
  void for_each(const std::function<void(const std::string&, const at::Tensor&)>& act) {
    const Arena& arena = values_.arena;
    for (int unit = 0; unit < arena.units(); ++unit) {
      values_.sync.unshard(unit, Direction::kForward);
      for (const auto& each : arena.parameters()) {
        if (each->spec().unit != unit) continue;
        act("parameter " + quote(each->spec().name, 200),
            has_masters() ? each->master() : each->working_weight());
      }
      values_.sync.reshard(unit);
    }
    for (const NamedTensor& each : values_.buffers) {
      act("buffer " + quote(each.name, 200), each.tensor);
    }
  }

  // Whether each rank updates all values itself.
  [[nodiscard]] bool has_masters() const { return values_.arena.sharding().stage == 0; }

  [[nodiscard]] at::Tensor all_of(const at::Tensor& own) const {
    at::Tensor all = at::empty({replicas_.size() * own.numel()}, own.options());
    replicas_.all_gather(all, own, session_.call("hashes of replicas")).wait();
    return all;
  }

  // Collective: the ranks by kind of processor. What ranks have gathered from one of them has its
  // bits on any kind.
  [[nodiscard]] std::vector<std::vector<std::size_t>> kinds_of_ranks() const {
    std::map<std::string, std::vector<std::size_t>> ranks;
    const std::vector<std::string> all = session_.gather(own_.processor, "kinds of processors");
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      ranks[has_masters() ? all[rank] : ""].push_back(rank);
    }
    std::vector<std::vector<std::size_t>> kinds;
    for (auto& [kind, of_kind] : ranks) kinds.push_back(std::move(of_kind));
    return kinds;
  }

  // Collective.
  std::optional<Failure> compare_values(const std::string& name, const at::Tensor& value,
                                        Classes classes) {
    for (const std::vector<std::size_t>& kind : kinds_) {
      if (auto failure = failure_among(kind, name, classes)) return failure;
    }
    const at::Tensor mine = on_host(value);
    const at::Tensor first = mine.clone();
    replicas_.broadcast(first.view({-1}).view(at::kByte), 0, session_.call("values that differ"))
        .wait();
    const bool is_rounded = is_equal_but_for_rounding(mine, first);
    const at::Tensor rounded = all_of(at::full({1}, is_rounded ? 1 : 0, at::kLong));
    std::vector<std::size_t> everyone;
    for (std::size_t i = 0; i < classes.size(); ++i) {
      if (rounded.const_data_ptr<std::int64_t>()[i] != 0) classes[i] = classes[0];
      everyone.push_back(i);
    }
    if (auto failure = failure_among(everyone, name, classes)) return failure;
    if (replicas_.rank() != 0) value.copy_(first);
    mended_.push_back(name);
    return std::nullopt;
  }

  void log_mended() const {
    log_info("replicas on processors of " + plural(std::ssize(kinds_), "kind") +
             " have come apart by rounding: all take over " + mended_.front() +
             (mended_.size() > 1 ? " and " + std::to_string(mended_.size() - 1) + " more" : "") +
             " of " + names_.front());
  }

  // Returns what is wrong where the ranks are of several classes; nothing where they are of one.
  [[nodiscard]] std::optional<Failure> failure_among(const std::vector<std::size_t>& ranks,
                                                     const std::string& name,
                                                     const Classes& classes) const {
    std::map<std::int64_t, std::size_t> sizes;
    for (const std::size_t rank : ranks) ++sizes[classes[rank]];
    if (sizes.size() == 1) return std::nullopt;
    const auto largest =
        std::ranges::max_element(sizes, {}, [](const auto& each) { return each.second; });
    Failure failure;
    failure.code = ExitCode::kRankDied;
    failure.hint =
        "a fault of memory or of a processor, or a program that writes to it on some ranks only: "
        "look at that machine, and go on from a checkpoint of before";
    const std::size_t first = ranks.front();
    if (2 * largest->second <= ranks.size()) {
      const auto other = std::ranges::find_if(
          ranks, [&](std::size_t rank) { return classes[rank] != classes[first]; });
      failure.message = name + " differs between " + names_[first] + " and " + names_[*other];
      return failure;
    }
    std::vector<std::string> odd;
    for (const std::size_t rank : ranks) {
      if (classes[rank] != largest->first) odd.push_back(names_[rank]);
    }
    failure.message = name + " on " + listed(odd) + " is not that of the other " +
                      plural(static_cast<std::int64_t>(largest->second), "replica");
    return failure;
  }

  const Group& replicas_;
  ReplicaValues values_;
  const ReplicaRank& own_;
  Session session_;
  // Of all ranks, once anything differs.
  std::vector<std::string> names_;
  std::vector<std::vector<std::size_t>> kinds_;
  std::vector<std::string> mended_;
};

}  // namespace

std::string processor_kind(at::Device device) {
  if (!device.is_cpu()) return fixed_facts_of(device).name;
  return machine_facts().cpu_model + ", " + at::get_cpu_capability() + ", " +
         plural(at::get_num_threads(), "thread");
}

std::optional<Failure> compare_replicas(const Group& replicas, ReplicaValues values,
                                        const ReplicaRank& own, Seconds timeout) {
  if (replicas.size() == 1) return std::nullopt;
  const at::NoGradGuard no_autograd;
  return Comparison(replicas, values, own, timeout).run();
}

// Those that differ need not be replicas of this rank.
void check_replicas(Trainer& trainer, const Job& job, std::int64_t step) {
  const ReplicaRank own{name_of_rank(job.rank(), job.members()),
                        processor_kind(job.context().device)};
  const std::optional<Failure> found = trainer.compare_replicas(own);
  for (const std::string& each : job.gather(found ? encode(*found) : "", "replicas")) {
    if (each.empty()) continue;
    Failure failure = decode_failure(each);
    failure.message = "after step " + std::to_string(step) + ", " + failure.message;
    throw_failure(failure);
  }
}

}  // namespace troika
