#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/device/device.h>
#include <troika/parallel/data_parallel/value_agreement.h>
#include <troika/param/rounding.h>

#include <troika/nn/module_tensors.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <vector>

namespace troika::detail {
namespace {

at::Tensor rows_of(const NamedTensor& named) {
  return to_host(named.tensor.detach()).contiguous();
}

// A tensor that is not the same on some ranks as on rank 0.
struct Difference {
  std::size_t index;
  std::vector<int> in_kind;  // ranks that have another dtype or shape
  std::vector<int> in_values;
};

struct Comparison {
  std::vector<Difference> differences;  // the same on all ranks
  bool counted_alike = true;            // all ranks know of the same writes
};

Comparison compare(const Session& session, std::span<const NamedTensor> tensors,
                   const CountedWrites& own) {
  // Of each rank: writes, whether tensors have moved, and two hashes of each tensor.
  const auto count = static_cast<std::int64_t>(tensors.size());
  const std::int64_t row = 2 + 2 * count;
  const at::Tensor told = at::empty({row}, at::kLong);
  auto* next = told.data_ptr<std::int64_t>();
  *next++ = own.count;
  *next++ = own.moved ? 1 : 0;
  for (const NamedTensor& each : tensors) {
    ContentHash kind;
    kind.update(c10::toString(each.tensor.scalar_type()));
    for (const std::int64_t size : each.tensor.sizes()) kind.update(" " + std::to_string(size));
    *next++ = static_cast<std::int64_t>(kind.digest());
    *next++ = static_cast<std::int64_t>(content_hash(bytes_of(rows_of(each))));
  }
  const at::Tensor all = at::empty({session.size() * row}, at::kLong);
  session.world().all_gather(all, told, session.call("hashes of parameters")).wait();
  Comparison comparison;
  const auto* first = all.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    Difference difference{static_cast<std::size_t>(i), {}, {}};
    for (int rank = 1; rank < session.size(); ++rank) {
      const std::int64_t *ours = first + 2 + 2 * i, *theirs = ours + rank * row;
      if (theirs[0] != ours[0]) {
        difference.in_kind.push_back(rank);
      } else if (theirs[1] != ours[1]) {
        difference.in_values.push_back(rank);
      }
    }
    if (difference.in_kind.empty() && difference.in_values.empty()) continue;
    comparison.differences.push_back(std::move(difference));
  }
  for (int rank = 0; rank < session.size(); ++rank) {
    const std::int64_t* theirs = first + rank * row;
    if (theirs[0] != first[0] || theirs[1] != 0) comparison.counted_alike = false;
  }
  return comparison;
}

// The values of rank 0, in rows.
at::Tensor values_of_first(const Session& session, const NamedTensor& named) {
  const at::Tensor rows =
      session.rank() == 0
          ? rows_of(named)
          : at::empty(named.tensor.sizes(), at::TensorOptions(named.tensor.scalar_type()));
  const at::Tensor bytes = rows.view(-1).view(at::kByte);
  session.world().broadcast(bytes, 0, session.call("parameter that differs")).wait();
  return rows;
}

std::vector<int> ranks_where(const Session& session, bool here) {
  const at::Tensor own = at::full({1}, here ? 1 : 0, at::kByte);
  const at::Tensor all = at::empty({session.size()}, at::kByte);
  session.world().all_gather(all, own, session.call("values beyond rounding")).wait();
  std::vector<int> ranks;
  for (int rank = 0; rank < session.size(); ++rank) {
    if (all.const_data_ptr<std::uint8_t>()[rank] != 0) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

Agreement agree_on_values(const Session& session, std::span<const NamedTensor> tensors,
                          const CountedWrites& own) {
  const Comparison comparison = compare(session, tensors, own);
  std::string hint = "do what writes to it on every rank, or call broadcast_from(0) after it";
  if (comparison.counted_alike) {
    hint += "; options.check_values = false where they are to differ for a while";
  }
  const auto refuse = [&](const NamedTensor& named, const std::vector<int>& ranks,
                          const std::string& what) {
    if (ranks.empty()) return;
    throw UsageError("parameter " + quote(named.name, 200) + " on " + ranks_in_words(ranks) +
                         " has " + what + " than on rank 0: it was written to on some ranks only",
                     hint);
  };
  for (const Difference& difference : comparison.differences) {
    const NamedTensor& named = tensors[difference.index];
    refuse(named, difference.in_kind, "another dtype or shape");
    if (!comparison.counted_alike) refuse(named, difference.in_values, "other values");
    const at::Tensor first = values_of_first(session, named);
    refuse(named, ranks_where(session, !is_equal_but_for_rounding(rows_of(named), first)),
           "other values");
    // Not through the parameter: what a forward pass has kept of it is still good.
    if (session.rank() != 0) named.tensor.variable_data().copy_(first);
  }
  return comparison.differences.empty() ? Agreement::kIdentical : Agreement::kSynchronised;
}

}  // namespace troika::detail
