// The algorithms of the engine across hosts.
#include <troika/comm/hierarchical/arithmetic.h>
#include <troika/comm/hierarchical/engine.h>
#include <troika/comm/p2p/pending_transfers.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace troika::detail {
namespace {

// Less than this goes through one leader and in one step: there, another step takes longer than
// what it saves.
constexpr std::int64_t kSmallBytes = std::int64_t{64} << 10;

at::Tensor part(const at::Tensor& whole, const Range& range) {
  return whole.narrow(0, range.begin, range.size());
}

void copy_values(const at::Tensor& to, const at::Tensor& from) {
  copy_bytes(as_bytes(to), as_bytes(from));
}

ReduceOp without_average(ReduceOp op) {
  return op == ReduceOp::kAverage ? ReduceOp::kSum : op;
}

// 16-bit floats are summed in fp32.
at::ScalarType summed_in(at::ScalarType dtype, ReduceOp op) {
  return is_narrow(dtype) && without_average(op) == ReduceOp::kSum ? at::kFloat : dtype;
}

// The last touch of a reduction: the average, and the rounding.
void finish(const at::Tensor& rounded, const at::Tensor& reduced, ReduceOp op, int members) {
  if (op == ReduceOp::kAverage) divide(reduced, members);
  if (rounded.scalar_type() != reduced.scalar_type()) {
    narrow(rounded, reduced);
  } else {
    copy_values(rounded, reduced);
  }
}

std::int64_t sum(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

}  // namespace

template <class Start>
void HierarchyEngine::inside(const Start& start) {
  if (!engines_.inside) return;
  Work work;
  {
    const std::lock_guard lock(inside_mutex_);
    work = start(*engines_.inside);
  }
  work.wait();
}

std::vector<std::int64_t> HierarchyEngine::shards(std::int64_t elements, std::int64_t bytes) const {
  std::vector<std::int64_t> counts =
      even_counts(elements, bytes <= kSmallBytes ? 1 : hosts_.leaders());
  counts.resize(neighbours().size(), 0);
  return counts;
}

void HierarchyEngine::run_all_reduce(const at::Tensor& tensor, ReduceOp op,
                                     const OperationContext& context) {
  const at::Tensor values = tensor.view({-1});
  if (values.numel() == 0) return;
  at::Tensor reduced = values;
  if (const auto dtype = summed_in(values.scalar_type(), op); dtype != values.scalar_type()) {
    reduced = at::empty({values.numel()}, dtype);
    widen(reduced, values);
  }
  const auto counts = shards(reduced.numel(), static_cast<std::int64_t>(reduced.nbytes()));
  const Range own = ranges_of(counts)[static_cast<std::size_t>(local_index())];
  const at::Tensor shard = part(reduced, own);
  inside([&](GroupEngine& engine) {
    return engine.reduce_scatter(shard, reduced, counts, without_average(op),
                                 call_inside(context, Step::kFirst));
  });
  if (own.size() > 0) reduce_between(shard, part(values, own), op, context);
  inside([&](GroupEngine& engine) {
    return engine.all_gather(values, part(values, own), counts, call_inside(context, Step::kLast));
  });
}

// The leaders' shards between hosts. `rounded` takes the result, of the user's dtype: where that
// is not the one of `shard`, the result is rounded before it travels back.
void HierarchyEngine::reduce_between(const at::Tensor& shard, const at::Tensor& rounded,
                                     ReduceOp op, const OperationContext& context) {
  const Call call = call_of(context, Step::kBetween);
  GroupEngine& between = *engines_.between;
  const bool same = rounded.scalar_type() == shard.scalar_type();
  if (same || static_cast<std::int64_t>(shard.nbytes()) <= kSmallBytes) {
    between.all_reduce(shard, without_average(op), call).wait();
    return finish(rounded, shard, op, size());
  }
  const auto counts = even_counts(shard.numel(), hosts_.count());
  const Range own = ranges_of(counts)[static_cast<std::size_t>(host())];
  between.reduce_scatter(part(shard, own), shard, counts, without_average(op), call).wait();
  finish(part(rounded, own), part(shard, own), op, size());
  between.all_gather(rounded, part(rounded, own), counts, call).wait();
}

void HierarchyEngine::run_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                         Counts counts, ReduceOp op,
                                         const OperationContext& context) {
  // Host by host, so that what goes to a host lies together.
  const at::Tensor values = input.view({-1});
  const auto dtype = summed_in(values.scalar_type(), op);
  const bool as_is = hosts_.in_order() && dtype == values.scalar_type();
  const at::Tensor packed = as_is ? values : at::empty({values.numel()}, dtype);
  const std::vector<Range> given = ranges_of(counts);
  std::vector<Range> parts(counts.size());  // by member, in `packed`
  std::int64_t at = 0;
  for (const int member : hosts_.by_host()) {
    const auto i = static_cast<std::size_t>(member);
    parts[i] = {at, at + counts[i]};
    at += counts[i];
    if (as_is) continue;
    const at::Tensor to = part(packed, parts[i]);
    dtype == values.scalar_type() ? copy_values(to, part(values, given[i]))
                                  : widen(to, part(values, given[i]));
  }

  const auto shard_counts = shards(packed.numel(), static_cast<std::int64_t>(packed.nbytes()));
  const auto shard_ranges = ranges_of(shard_counts);
  const Range own = shard_ranges[static_cast<std::size_t>(local_index())];
  const at::Tensor shard = engines_.inside ? at::empty({own.size()}, dtype) : packed;
  inside([&](GroupEngine& engine) {
    return engine.reduce_scatter(shard, packed, shard_counts, without_average(op),
                                 call_inside(context, Step::kFirst));
  });

  const auto host_ranges = ranges_of(hosts_.sums(counts));
  const Range here = host_ranges[static_cast<std::size_t>(host())];
  at::Tensor piece = at::empty({own.shared_with(here).size()}, dtype);
  if (own.size() > 0) {
    std::vector<std::int64_t> to_hosts;
    for (const Range& range : host_ranges) to_hosts.push_back(own.shared_with(range).size());
    engines_.between
        ->reduce_scatter(piece, shard, to_hosts, without_average(op),
                         call_of(context, Step::kBetween))
        .wait();
  }
  const at::Tensor rounded = at::empty({piece.numel()}, values.scalar_type());
  finish(rounded, piece, op, size());
  std::vector<Range> pieces;  // of each leader of this host
  for (const Range& range : shard_ranges) pieces.push_back(range.shared_with(here));
  distribute_parts(output.view({-1}), rounded, parts[static_cast<std::size_t>(index())], pieces,
                   parts, context);
}

// What the leaders of this host have, to the members whose parts it is in.
void HierarchyEngine::distribute_parts(const at::Tensor& output, const at::Tensor& piece,
                                       Range own_part, std::span<const Range> pieces,
                                       std::span<const Range> parts,
                                       const OperationContext& context) {
  if (!engines_.inside) return copy_values(output, piece);
  std::vector<std::int64_t> from, to;
  for (const Range& range : pieces) from.push_back(range.shared_with(own_part).size());
  for (const int member : neighbours()) {
    const Range& own_piece = pieces[static_cast<std::size_t>(local_index())];
    to.push_back(own_piece.shared_with(parts[static_cast<std::size_t>(member)]).size());
  }
  inside([&](GroupEngine& engine) {
    return engine.all_to_all(output, from, piece, to, call_inside(context, Step::kLast));
  });
}

void HierarchyEngine::run_all_gather(const at::Tensor& output, const at::Tensor& input,
                                     Counts counts, const OperationContext& context) {
  const at::Tensor all = output.view({-1});
  const at::Tensor packed = hosts_.in_order() ? all : at::empty_like(all);
  const auto host_counts = hosts_.sums(counts);
  const at::Tensor here = part(packed, ranges_of(host_counts)[static_cast<std::size_t>(host())]);
  std::vector<std::int64_t> counts_here;
  for (const int member : neighbours()) {
    counts_here.push_back(counts[static_cast<std::size_t>(member)]);
  }
  if (!engines_.inside) copy_values(here, input.view({-1}));
  inside([&](GroupEngine& engine) {
    return engine.all_gather(here, input.view({-1}), counts_here,
                             call_inside(context, Step::kFirst));
  });
  if (local_index() == 0) {
    engines_.between->all_gather(packed, here, host_counts, call_of(context, Step::kBetween))
        .wait();
  }
  inside([&](GroupEngine& engine) {
    return engine.broadcast(packed, 0, call_inside(context, Step::kLast));
  });
  if (hosts_.in_order()) return;
  const auto wanted = ranges_of(counts);
  std::int64_t at = 0;
  for (const int member : hosts_.by_host()) {
    const Range& range = wanted[static_cast<std::size_t>(member)];
    copy_values(part(all, range), part(packed, {at, at + range.size()}));
    at += range.size();
  }
}

void HierarchyEngine::run_broadcast(const at::Tensor& tensor, int root,
                                    const OperationContext& context) {
  const bool at_home = hosts_.host_of(root) == host();
  if (at_home) {
    inside([&](GroupEngine& engine) {
      return engine.broadcast(tensor, hosts_.local_index_of(root),
                              call_inside(context, Step::kFirst));
    });
  }
  if (local_index() == 0) {
    engines_.between->broadcast(tensor, hosts_.host_of(root), call_of(context, Step::kBetween))
        .wait();
  }
  if (!at_home) {
    inside([&](GroupEngine& engine) {
      return engine.broadcast(tensor, 0, call_inside(context, Step::kLast));
    });
  }
}

void HierarchyEngine::run_barrier(const OperationContext& context) {
  inside([&](GroupEngine& engine) { return engine.barrier(call_inside(context, Step::kFirst)); });
  if (local_index() == 0) engines_.between->barrier(call_of(context, Step::kBetween)).wait();
  inside([&](GroupEngine& engine) { return engine.barrier(call_inside(context, Step::kLast)); });
}

namespace {

// What a member exchanges with some of the others, out of what it exchanges with all.
struct Selection {
  std::vector<std::int64_t> counts;  // by peer of the engine that carries it
  at::Tensor elements;
};

enum class Fill { kWithValues, kLater };

// `members`, by peer of the engine, or -1 for a peer that gets nothing.
Selection select(const at::Tensor& whole, std::span<const std::int64_t> counts,
                 std::span<const int> members, Fill fill) {
  const auto ranges = ranges_of(counts);
  Selection selection;
  for (const int member : members) {
    selection.counts.push_back(member < 0 ? 0 : counts[static_cast<std::size_t>(member)]);
  }
  selection.elements = at::empty({sum(selection.counts)}, whole.options());
  if (fill == Fill::kLater) return selection;
  const auto packed = ranges_of(selection.counts);
  for (std::size_t peer = 0; peer < members.size(); ++peer) {
    if (members[peer] < 0) continue;
    copy_values(part(selection.elements, packed[peer]),
                part(whole, ranges[static_cast<std::size_t>(members[peer])]));
  }
  return selection;
}

void put_back(const Selection& selection, std::span<const int> members, const at::Tensor& whole,
              std::span<const std::int64_t> counts) {
  const auto ranges = ranges_of(counts);
  const auto packed = ranges_of(selection.counts);
  for (std::size_t peer = 0; peer < members.size(); ++peer) {
    if (members[peer] < 0) continue;
    copy_values(part(whole, ranges[static_cast<std::size_t>(members[peer])]),
                part(selection.elements, packed[peer]));
  }
}

}  // namespace

// Each pair's elements straight from one to the other, inside a host and between hosts at the same
// time.
void HierarchyEngine::run_all_to_all(const at::Tensor& output, Counts output_counts,
                                     const at::Tensor& input, Counts input_counts,
                                     const OperationContext& context) {
  const at::Tensor to = output.view({-1}), from = input.view({-1});
  std::vector<int> far(static_cast<std::size_t>(size()));
  for (int member = 0; member < size(); ++member) {
    far[static_cast<std::size_t>(member)] = hosts_.host_of(member) == host() ? -1 : member;
  }
  const Selection far_in = select(from, input_counts, far, Fill::kWithValues);
  const Selection far_out = select(to, output_counts, far, Fill::kLater);
  const Selection near_in = select(from, input_counts, neighbours(), Fill::kWithValues);
  const Selection near_out = select(to, output_counts, neighbours(), Fill::kLater);
  // A rank of this host that does not come is blamed before one of another that is only slow.
  const Work between_hosts =
      engines_.all->all_to_all(far_out.elements, far_out.counts, far_in.elements, far_in.counts,
                               call_of(context, Step::kBetween));
  inside([&](GroupEngine& engine) {
    return engine.all_to_all(near_out.elements, near_out.counts, near_in.elements, near_in.counts,
                             call_inside(context, Step::kFirst));
  });
  if (!engines_.inside) copy_values(near_out.elements, near_in.elements);
  between_hosts.wait();
  put_back(far_out, far, to, output_counts);
  put_back(near_out, neighbours(), to, output_counts);
}

// What the root takes from each member, and nothing else.
void HierarchyEngine::run_gather(const at::Tensor& output, const at::Tensor& input, int root,
                                 const OperationContext& context) {
  const bool receives = index() == root;
  std::vector<std::int64_t> to(static_cast<std::size_t>(size()), 0);
  const std::vector<std::int64_t> from(to.size(), receives ? input.numel() : 0);
  to[static_cast<std::size_t>(root)] = input.numel();
  run_all_to_all(receives ? output : at::empty({0}, input.options()), from, input, to, context);
}

// What the root gives each member, and nothing else.
void HierarchyEngine::run_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                                  const OperationContext& context) {
  const bool sends = index() == root;
  std::vector<std::int64_t> from(static_cast<std::size_t>(size()), 0);
  const std::vector<std::int64_t> to(from.size(), sends ? output.numel() : 0);
  from[static_cast<std::size_t>(root)] = output.numel();
  run_all_to_all(output, from, sends ? input : at::empty({0}, output.options()), to, context);
}

}  // namespace troika::detail
