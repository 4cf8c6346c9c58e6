#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/server/island_sync.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Values that are shared in one go: what ranks hold beside their own parts.
constexpr std::int64_t kSharedValues = std::int64_t{1} << 24;

}  // namespace

IslandSync::IslandSync(Arena& arena, IslandOptions options)
    : RemoteWorker(arena, options.worker.job, options.inside),
      ranks_(std::move(options.ranks)),
      timeout_(options.inside.timeout),
      longest_wait_(options.longest_wait) {
  if (is_leader()) client_.emplace(std::move(options.worker), 0, arena.types().master);
  share_layout();
  if (!layout_.frozen.empty()) share_frozen();
  std::vector<StateSpec> whole;
  for (const FlatLayout::Parameter& each : layout_.trained) {
    whole.push_back({each.name, each.shape, arena.types().master});
  }
  std::ranges::sort(whole, {}, &StateSpec::name);
  std::vector<StateTensor> own;
  masters().for_each_shard([&](const LocalShard& shard, std::int64_t) {
    own.push_back({arena.parameters()[shard.parameter]->spec().name,
                   ShardDescriptor::of(arena, shard), shard.master.view({-1})});
  });
  gatherer_.emplace(ranks_, std::move(whole), own, timeout_);
}

void IslandSync::share_layout() {
  std::string text;
  if (is_leader()) {
    layout_ = client_->layout();
    client_->make_buffer(layout_.size());
    text = layout_.text();
  }
  const auto longest = [&] { return Call{"layout of the model", Deadline::in(longest_wait_)}; };
  const at::Tensor size = at::full({1}, std::ssize(text), at::kLong);
  ranks_.broadcast(size, 0, longest()).wait();
  const at::Tensor bytes = at::empty({size.item<std::int64_t>()}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  ranks_.broadcast(bytes, 0, longest()).wait();
  if (is_leader()) return;
  layout_ = FlatLayout::from(
      {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())});
}

void IslandSync::share_frozen() {
  std::int64_t bytes = 0;
  for (const FlatLayout::Parameter& each : layout_.frozen) bytes += each.bytes();
  const at::Tensor values = at::empty({bytes}, at::kByte);
  if (is_leader()) values.copy_(client_->frozen_values());
  ranks_.broadcast(values, 0, {"frozen parameters", Deadline::in(longest_wait_)}).wait();
  take_frozen(arena(), layout_, values);
}

void IslandSync::share_values() {
  std::size_t first = 0;
  for (std::int64_t begin = 0; first < layout_.trained.size();) {
    std::size_t last = first;
    std::int64_t count = 0;
    do {
      count += layout_.trained[last++].count();
    } while (last < layout_.trained.size() &&
             count + layout_.trained[last].count() <= kSharedValues);
    const at::Tensor values =
        is_leader() ? client_->buffer().narrow(0, begin, count) : host_values(count);
    ranks_.broadcast(values, 0, call("parameters of an island")).wait();
    for (std::int64_t at = 0; first < last; ++first) {
      const FlatLayout::Parameter& parameter = layout_.trained[first];
      take_parameter(arena(), parameter, values.narrow(0, at, parameter.count()));
      at += parameter.count();
    }
    begin += count;
  }
  publish();
}

IslandSync::LeaderMessage IslandSync::broadcast(const LeaderMessage& own) const {
  const at::Tensor told = at::empty({std::ssize(own)}, at::kLong);
  std::ranges::copy(own, told.mutable_data_ptr<std::int64_t>());
  ranks_.broadcast(told, 0, {"samples of an island", Deadline::in(longest_wait_)}).wait();
  LeaderMessage all;
  std::copy_n(told.const_data_ptr<std::int64_t>(), all.size(), all.begin());
  return all;
}

std::optional<DealtSamples> IslandSync::next_samples() {
  LeaderMessage told = {kOver};
  if (is_leader()) {
    // While the leader waits for samples the other ranks wait in a collective: a message now and
    // then keeps them below its deadline.
    const auto dealt = client_->next_samples([this] { (void)broadcast({kWait}); });
    if (dealt) told = {kSamples, dealt->step, dealt->samples.first, dealt->samples.count};
  }
  do {
    told = broadcast(told);
  } while (told[0] == kWait);
  if (told[0] == kOver) return std::nullopt;
  share_values();
  return DealtSamples{told[1], {told[2], told[3]}};
}

void IslandSync::push(const RemoteUpdate& update) {
  std::vector<at::Tensor> own;
  masters().for_each_shard([&](const LocalShard& shard, std::int64_t) {
    const at::Tensor& values = local_steps() > 0 ? shard.master : shard.gradient;
    own.push_back(values.view({-1}).to(arena().types().master));
  });
  const std::vector<NamedTensor> whole = gatherer_->gather(own, "push of an island");
  if (!is_leader()) return;
  std::map<std::string_view, at::Tensor> by_name;
  for (const NamedTensor& each : whole) by_name[each.name] = each.tensor;
  std::int64_t begin = 0;
  for (const FlatLayout::Parameter& each : layout_.trained) {
    const at::Tensor there = client_->buffer().narrow(0, begin, each.count());
    const at::Tensor values = by_name.at(each.name).view({-1});
    if (local_steps() > 0) {
      there.sub_(values);
    } else {
      there.copy_(values).mul_(update.unscale);
    }
    begin += each.count();
  }
  client_->push(local_steps() > 0 ? change_in(client_->buffer(), update) : update);
}

}  // namespace troika
