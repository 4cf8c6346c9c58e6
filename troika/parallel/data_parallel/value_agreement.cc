#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/device/device.h>
#include <troika/parallel/data_parallel/value_agreement.h>

#include <troika/nn/module_tensors.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
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

// How far apart rounding leaves values in some hundred steps, over the largest: so many units in
// the last place as a random walk does not come to, in any of many elements; of numbers with few
// digits few, as what is added is seldom so close to the middle of two that it makes a difference.
double rounding_of(at::ScalarType dtype) {
  constexpr double kUnits = 256, kFewUnits = 2;
  switch (dtype) {
    case at::kDouble:
      return kUnits * std::numeric_limits<double>::epsilon();
    case at::kFloat:
      return kUnits * std::numeric_limits<float>::epsilon();
    case at::kHalf:
      return kFewUnits * std::numeric_limits<c10::Half>::epsilon();
    case at::kBFloat16:
      return kFewUnits * std::numeric_limits<c10::BFloat16>::epsilon();
    default:
      return 0;
  }
}

// Both in rows, and of one dtype and shape.
bool is_rounded(const at::Tensor& actual, const at::Tensor& expected) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  if (!actual.is_floating_point()) return actual.equal(expected);
  double apart = 0, scale = 0;
  for (std::int64_t at = 0; at < actual.numel(); at += kBlock) {
    const auto block = [&](const at::Tensor& rows) {
      return rows.view(-1).narrow(0, at, std::min(kBlock, rows.numel() - at)).to(at::kDouble);
    };
    const at::Tensor a = block(actual), b = block(expected);
    const at::Tensor same = (a == b).logical_or(a.isnan().logical_and(b.isnan()));
    const double here = (a - b).abs().masked_fill(same, 0).max().item<double>();
    if (!(here <= std::numeric_limits<double>::max())) return false;
    apart = std::max(apart, here);
    scale =
        std::max(scale, b.abs().masked_fill(b.isfinite().logical_not(), 0).max().item<double>());
  }
  return apart <= rounding_of(actual.scalar_type()) * scale;
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
    refuse(named, ranks_where(session, !is_rounded(rows_of(named), first)), "other values");
    // Not through the parameter: what a forward pass has kept of it is still good.
    if (session.rank() != 0) named.tensor.variable_data().copy_(first);
  }
  return comparison.differences.empty() ? Agreement::kIdentical : Agreement::kSynchronised;
}

}  // namespace troika::detail
