#include <ATen/ATen.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/device/device.h>
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

class Comparison {
 public:
  Comparison(const Group& replicas, ReplicaValues values, const std::string& own, Seconds timeout)
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
    std::optional<Failure> failure;
    bool mended = false;
    std::int64_t index = 0;
    for_each([&](const std::string& name, const at::Tensor& value) {
      const std::int64_t here = index++;
      if (failure || equal[here].item<bool>()) return;
      std::vector<std::int64_t> classes(static_cast<std::size_t>(replicas_.size()));
      const at::Tensor column = by_rank.select(1, here).contiguous();
      std::copy_n(column.const_data_ptr<std::int64_t>(), classes.size(), classes.begin());
      failure = compare_values(name, value, std::move(classes));
      mended = true;
    });
    if (mended && !failure) values_.arena.publish();
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

  // Collective. `classes` are equal for replicas with the same bits.
  std::optional<Failure> compare_values(const std::string& name, const at::Tensor& value,
                                        std::vector<std::int64_t> classes) {
    const at::Tensor mine = on_host(value);
    const at::Tensor first = mine.clone();
    replicas_.broadcast(first.view({-1}).view(at::kByte), 0, session_.call("values that differ"))
        .wait();
    const bool is_rounded = is_equal_but_for_rounding(mine, first);
    const at::Tensor rounded = all_of(at::full({1}, is_rounded ? 1 : 0, at::kLong));
    if (rounded.all().item<bool>()) {
      if (has_masters() && replicas_.rank() != 0) value.copy_(first);
      return std::nullopt;
    }
    for (std::size_t i = 0; i < classes.size(); ++i) {
      if (rounded.const_data_ptr<std::int64_t>()[i] != 0) classes[i] = classes[0];
    }
    return failure_of(name, classes);
  }

  // Collective.
  Failure failure_of(const std::string& name, const std::vector<std::int64_t>& classes) {
    const std::vector<std::string> names = session_.gather(own_, "names of ranks");
    std::map<std::int64_t, std::size_t> sizes;
    for (const std::int64_t each : classes) ++sizes[each];
    const auto largest =
        std::ranges::max_element(sizes, {}, [](const auto& each) { return each.second; });
    Failure failure;
    failure.code = ExitCode::kRankDied;
    failure.hint =
        "a fault of memory or of a processor, or a program that writes to it on some ranks only: "
        "look at that machine, and go on from a checkpoint of before";
    if (2 * largest->second <= classes.size()) {
      const auto other =
          std::ranges::find_if(classes, [&](std::int64_t each) { return each != classes[0]; });
      failure.message = name + " differs between " + names[0] + " and " +
                        names[static_cast<std::size_t>(other - classes.begin())];
      return failure;
    }
    std::vector<std::string> odd;
    for (std::size_t i = 0; i < classes.size(); ++i) {
      if (classes[i] != largest->first) odd.push_back(names[i]);
    }
    failure.message = name + " on " + listed(odd) + " is not that of the other " +
                      plural(static_cast<std::int64_t>(largest->second), "replica");
    return failure;
  }

  const Group& replicas_;
  ReplicaValues values_;
  const std::string& own_;
  Session session_;
};

}  // namespace

std::optional<Failure> compare_replicas(const Group& replicas, ReplicaValues values,
                                        const std::string& own, Seconds timeout) {
  if (replicas.size() == 1) return std::nullopt;
  const at::NoGradGuard no_autograd;
  return Comparison(replicas, values, own, timeout).run();
}

// Those that differ need not be replicas of this rank.
void check_replicas(Trainer& trainer, const Job& job, std::int64_t step) {
  const std::optional<Failure> found =
      trainer.compare_replicas(name_of_rank(job.rank(), job.members()));
  for (const std::string& each : job.gather(found ? encode(*found) : "", "replicas")) {
    if (each.empty()) continue;
    Failure failure = decode_failure(each);
    failure.message = "after step " + std::to_string(step) + ", " + failure.message;
    throw_failure(failure);
  }
}

}  // namespace troika
