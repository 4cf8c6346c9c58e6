#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/device/device.h>
#include <troika/parallel/data_parallel/replica_agreement.h>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace troika::detail {
namespace {

// "parameter 'fc.weight' is float [10, 128], trained": a line each.
std::string describe(std::string_view kind, const NamedTensor& named) {
  std::ostringstream text;
  const at::Tensor& tensor = named.tensor;
  text << kind << " " << quote(named.name, 200) << " is " << c10::toString(tensor.scalar_type())
       << " " << tensor.sizes();
  if (!tensor.is_cpu()) text << " on " << c10::DeviceTypeName(tensor.device().type(), true);
  if (kind != "parameter") return text.str();
  text << (tensor.requires_grad() ? ", trained" : ", frozen");
  // Gradients have them, too.
  if (tensor.requires_grad() && tensor.is_non_overlapping_and_dense() && !tensor.is_contiguous()) {
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

// As many tensors at a time as fit into this, so that there are few operations.
constexpr std::size_t kTogether = std::size_t{8} << 20;

void broadcast_packed(const Session& session, std::span<const NamedTensor> tensors, int root) {
  std::size_t size = 0;
  for (const NamedTensor& each : tensors) size += each.tensor.nbytes();
  if (size == 0) return;
  const at::Tensor packed = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
  auto* next = static_cast<std::byte*>(packed.data_ptr());
  for (const NamedTensor& each : tensors) {
    const at::Tensor rows = to_host(each.tensor.detach()).contiguous();
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
        at::empty(each.tensor.sizes(), at::TensorOptions(each.tensor.scalar_type()));
    std::memcpy(rows.data_ptr(), next, rows.nbytes());
    each.tensor.copy_(rows);
    next += rows.nbytes();
  }
}

}  // namespace

ValidationError validate_tensor(std::string_view kind, const NamedTensor& named) {
  const at::Tensor& tensor = named.tensor;
  const std::string name = std::string(kind) + " " + quote(named.name, 200);
  const std::string hint = "parameters and buffers are dense tensors with values";
  if (tensor.layout() != at::kStrided) return {name + " is not a dense tensor", hint};
  if (tensor.is_meta()) return {name + " is on meta: it has no values", hint};
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

void throw_on_all_ranks(const Session& session, const ValidationError& own,
                        std::string_view label) {
  std::optional<Failure> failure;
  if (!own.text.empty()) failure = Failure{ExitCode::kUsage, own.text, own.hint};
  troika::throw_on_all_ranks(session, failure, label);
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

}  // namespace troika::detail
