#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/parallel/data/replica_agreement.h>
#include <troika/parallel/data/value_digest.h>
#include <troika/rendezvous/agreement.h>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>

namespace troika::detail {
namespace {

std::string ranks_in_words(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_ranks(ranks);
}

// "parameter 'fc.weight' is float [10, 128], trained": a line each.
std::string describe(std::string_view kind, const NamedTensor& named) {
  std::ostringstream text;
  const at::Tensor& tensor = named.tensor;
  text << kind << " " << quote(named.name, 200) << " is " << c10::toString(tensor.scalar_type())
       << " " << tensor.sizes();
  if (kind != "parameter") return text.str();
  text << (tensor.requires_grad() ? ", trained" : ", frozen");
  // Gradients have them, too.
  if (tensor.is_non_overlapping_and_dense() && !tensor.is_contiguous()) {
    text << ", with strides " << tensor.strides();
  }
  return text.str();
}

// What describe() says, by "parameter 'fc.weight'", in the module's order.
struct Description {
  explicit Description(const std::string& text) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      const std::string key = line.substr(0, line.find("' is ") + 1);
      keys.push_back(key);
      lines[key] = line.substr(key.size() + 1);
    }
  }
  [[nodiscard]] std::string of(const std::string& key) const {
    const auto found = lines.find(key);
    return found == lines.end() ? "is not there" : found->second;
  }
  std::vector<std::string> keys;
  std::map<std::string, std::string> lines;
};

// The first parameter or buffer that is not the same; the first of all where only their order
// differs.
std::string first_difference_of(const Description& ours, const Description& theirs) {
  for (const auto* keys : {&ours.keys, &theirs.keys}) {
    for (const std::string& key : *keys) {
      if (ours.of(key) != theirs.of(key)) return key;
    }
  }
  return ours.keys.front();
}

std::span<std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

// As many tensors at a time as fit into this, so that there are few operations.
constexpr std::size_t kTogether = std::size_t{8} << 20;

void broadcast_packed(const Session& session, std::span<const NamedTensor> tensors, int root) {
  std::size_t size = 0;
  for (const NamedTensor& each : tensors) size += each.tensor.nbytes();
  if (size == 0) return;
  const at::Tensor packed = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
  auto* next = static_cast<std::byte*>(packed.data_ptr());
  for (const NamedTensor& each : tensors) {
    const at::Tensor rows = each.tensor.detach().contiguous();
    std::memcpy(next, rows.const_data_ptr(), rows.nbytes());
    next += rows.nbytes();
  }
  session.world().broadcast(packed, root, session.call("parameters and buffers")).wait();
  if (session.rank() == root) return;
  const at::NoGradGuard no_grad;
  next = static_cast<std::byte*>(packed.data_ptr());
  for (const NamedTensor& each : tensors) {
    // Aligned for its type, and with rows as on the root.
    const at::Tensor rows =
        at::empty(each.tensor.sizes(), each.tensor.options().requires_grad(false));
    std::memcpy(rows.data_ptr(), next, rows.nbytes());
    each.tensor.copy_(rows);
    next += rows.nbytes();
  }
}

// A tensor that is not the same on some ranks as on rank 0.
struct Difference {
  std::size_t index;
  std::vector<int> ranks;
  bool in_kind;  // in dtype or shape
};

// The same on all ranks.
std::vector<Difference> differences_of(const Session& session,
                                       std::span<const NamedTensor> tensors) {
  const auto count = static_cast<std::int64_t>(tensors.size());
  const at::Tensor own = at::empty({2 * count}, at::kLong);
  auto* kinds = own.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor rows = tensors[i].tensor.detach().contiguous();
    kinds[i] = static_cast<std::int64_t>(content_hash(describe("", tensors[i])));
    kinds[i + tensors.size()] = static_cast<std::int64_t>(content_hash(bytes_of(rows)));
  }
  const at::Tensor all = at::empty({session.size() * 2 * count}, at::kLong);
  session.world().all_gather(all, own, session.call("hashes of parameters")).wait();
  const auto* hashes = all.const_data_ptr<std::int64_t>();
  std::vector<Difference> differences;
  for (std::int64_t i = 0; i < count; ++i) {
    Difference difference{static_cast<std::size_t>(i), {}, false};
    for (int rank = 1; rank < session.size(); ++rank) {
      const std::int64_t* theirs = hashes + rank * 2 * count;
      const bool in_kind = theirs[i] != hashes[i];
      if (!in_kind && theirs[i + count] == hashes[i + count]) continue;
      difference.ranks.push_back(rank);
      difference.in_kind = difference.in_kind || in_kind;
    }
    if (!difference.ranks.empty()) differences.push_back(std::move(difference));
  }
  return differences;
}

// The distance from 1 to the next number.
double unit_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kHalf:
      return std::numeric_limits<c10::Half>::epsilon();
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::epsilon();
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

// Whether `actual` is `expected` but for what rounding leaves in ValueDigest::kPasses steps: it
// goes either way, so that a few units in the last place of the largest value are plenty.
bool is_rounded(const at::Tensor& actual, const at::Tensor& expected) {
  constexpr double kUnits = 16;
  if (!actual.is_floating_point() || actual.numel() == 0) return actual.equal(expected);
  const at::Tensor a = actual.detach().to(at::kDouble), b = expected.detach().to(at::kDouble);
  const at::Tensor same = (a == b).logical_or(a.isnan().logical_and(b.isnan()));
  const double apart = (a - b).abs().masked_fill(same, 0).max().item<double>();
  const double scale = b.abs().masked_fill(b.isfinite().logical_not(), 0).max().item<double>();
  return apart <= kUnits * unit_of(actual.scalar_type()) * scale;  // not if NaN
}

// Ranks whose values of the tensor, of one dtype and shape on all, are not those of rank 0 but for
// rounding.
std::vector<int> ranks_beyond_rounding(const Session& session, const at::Tensor& tensor) {
  const NamedTensor first{"", tensor.detach().clone()};
  broadcast_tensors(session, {&first, 1}, 0);
  const at::Tensor own = at::full({1}, is_rounded(tensor, first.tensor) ? 0 : 1, at::kByte);
  const at::Tensor all = at::empty({session.size()}, at::kByte);
  session.world().all_gather(all, own, session.call("values beyond rounding")).wait();
  std::vector<int> ranks;
  for (int rank = 0; rank < session.size(); ++rank) {
    if (all.const_data_ptr<std::uint8_t>()[rank] != 0) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

Complaint complaint_of_values(std::string_view kind, const NamedTensor& named) {
  const at::Tensor& tensor = named.tensor;
  const std::string name = std::string(kind) + " " + quote(named.name, 200);
  const std::string hint = "parameters and buffers are dense tensors in host memory";
  if (!tensor.is_cpu()) return {name + " is not in host memory", hint};
  if (tensor.layout() != at::kStrided) return {name + " is not a dense tensor", hint};
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return {name + " has several elements at one address, as expand() makes them",
            "register the tensor's clone() instead"};
  }
  return {};
}

std::map<std::string, std::vector<int>> ranks_by_text(const std::vector<std::string>& all) {
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) ranks[all[rank]].push_back(static_cast<int>(rank));
  }
  return ranks;
}

void complain_together(const Session& session, const Complaint& own, std::string_view label) {
  const std::string mine = own.text.empty() ? "" : own.text + "\n" + own.hint;
  std::string message, hint;
  for (const auto& [complaint, ranks] : ranks_by_text(session.gather(mine, label))) {
    const std::size_t end = complaint.find('\n');
    if (message.empty()) hint = complaint.substr(end + 1);
    message +=
        (message.empty() ? "" : "; ") + complaint.substr(0, end) + ", on " + ranks_in_words(ranks);
  }
  if (!message.empty()) throw UsageError(message, hint);
}

void compare_modules(const Session& session, std::span<const NamedTensor> parameters,
                     std::span<const NamedTensor> buffers) {
  std::string own;
  for (const NamedTensor& each : parameters) own += describe("parameter", each) + "\n";
  for (const NamedTensor& each : buffers) own += describe("buffer", each) + "\n";
  const std::vector<std::string> all = session.gather(own, "module");
  const Description first(all[0]);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const Description theirs(all[rank]);
    const std::string key = first_difference_of(first, theirs);
    std::vector<int> alike;  // ranks that say the same as this one
    for (std::size_t other = 0; other < all.size(); ++other) {
      if (all[other] == all[rank]) alike.push_back(static_cast<int>(other));
    }
    throw UsageError("the modules of the ranks differ: " + key + " " + first.of(key) +
                         " on rank 0, and " + theirs.of(key) + " on " + ranks_in_words(alike),
                     "build the same module on all ranks, in the same order; its values may "
                     "differ, those of rank 0 are taken");
  }
}

void broadcast_tensors(const Session& session, std::span<const NamedTensor> tensors, int root) {
  if (session.size() == 1) return;
  std::size_t begin = 0, size = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    size += tensors[i].tensor.nbytes();
    if (size < kTogether) continue;
    broadcast_packed(session, tensors.subspan(begin, i + 1 - begin), root);
    begin = i + 1;
    size = 0;
  }
  broadcast_packed(session, tensors.subspan(begin), root);
}

void agree_on_values(const Session& session, std::span<const NamedTensor> tensors,
                     const std::string& hint) {
  const auto throw_about = [&](const NamedTensor& named, const std::vector<int>& ranks,
                               const std::string& what) {
    throw UsageError("parameter " + quote(named.name, 200) + " on " + ranks_in_words(ranks) +
                         " has " + what + " than on rank 0: it was written to on some ranks only",
                     hint);
  };
  std::vector<NamedTensor> rounded;
  for (const Difference& difference : differences_of(session, tensors)) {
    const NamedTensor& named = tensors[difference.index];
    if (difference.in_kind) throw_about(named, difference.ranks, "another dtype or shape");
    const std::vector<int> ranks = ranks_beyond_rounding(session, named.tensor);
    if (!ranks.empty()) throw_about(named, ranks, "other values");
    rounded.push_back(named);
  }
  broadcast_tensors(session, rounded, 0);
}

}  // namespace troika::detail
