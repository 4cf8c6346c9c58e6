#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/comm/checks.h>

#include <c10/util/StringUtil.h>

namespace troika::detail {
namespace {

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_meta() || b.is_meta() || a.device() != b.device()) return false;
  if (a.nbytes() == 0 || b.nbytes() == 0) return false;
  const auto* a_begin = static_cast<const char*>(a.const_data_ptr());
  const auto* b_begin = static_cast<const char*>(b.const_data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

}  // namespace

std::string_view name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "fp64";
    case at::kFloat:
      return "fp32";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kByte:
      return "uint8";
    default:
      return "";
  }
}

void ArgumentCheck::refuse(const std::string& why, std::string hint) const {
  throw UsageError(std::string(operation_) + " " + quote(label_) + ": " + why, std::move(hint));
}

void ArgumentCheck::tensor(const at::Tensor& tensor, std::string_view name) const {
  const auto the = [name] { return "the " + std::string(name); };
  if (!tensor.defined()) refuse(the() + " is undefined");
  if (tensor.layout() != at::kStrided) refuse(the() + " is not a dense tensor");
  if (name_of(tensor.scalar_type()).empty()) {
    refuse(the() + " has dtype " + c10::str(tensor.scalar_type()),
           "groups carry fp64, fp32, bf16, fp16, int64, int32 and uint8");
  }
  if (!tensor.is_contiguous()) {
    refuse(the() + " of shape " + c10::str(tensor.sizes()) + " is not contiguous (strides " +
               c10::str(tensor.strides()) + ")",
           "pass tensor.contiguous(), and copy the result back where it is written");
  }
  if (!tensor.is_meta() && tensor.numel() > 0 &&
      reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % tensor.element_size() != 0) {
    refuse(the() + " begins at an address that is no multiple of the " +
               std::to_string(tensor.element_size()) + " bytes of its elements",
           "pass tensor.clone(), and copy the result back where it is written");
  }
  const auto takes = [&](at::DeviceType device) { return engine_->accepts(device); };
  // What an engine of the host does not take goes through the host's memory.
  const bool staged = engine_ && takes(at::kCPU) && !tensor.is_meta();
  if (engine_ && !staged && !takes(tensor.device().type())) {
    refuse(the() + " is on " + tensor.device().str() + ", which engine " +
           std::string(engine_->name()) + " does not take");
  }
}

void ArgumentCheck::same_dtype(const at::Tensor& output, const at::Tensor& input) const {
  if (output.scalar_type() == input.scalar_type()) return;
  refuse("the output has dtype " + c10::str(output.scalar_type()) + ", the input " +
         c10::str(input.scalar_type()));
}

void ArgumentCheck::reduction(const at::Tensor& tensor, ReduceOp op) const {
  if (op < ReduceOp::kSum || op > ReduceOp::kMin) {
    refuse("no ReduceOp has the number " + std::to_string(static_cast<int>(op)));
  }
  if (op != ReduceOp::kAverage || at::isFloatingType(tensor.scalar_type())) return;
  refuse("an average of " + std::string(name_of(tensor.scalar_type())) + " is not defined",
         "sum, and divide as you mean it");
}

void ArgumentCheck::member(int index, std::string_view name) const {
  if (index >= 0 && index < size_) return;
  refuse("the " + std::string(name) + " " + std::to_string(index) +
         " is not a member: the group has " + std::to_string(size_));
}

void ArgumentCheck::elements(const at::Tensor& tensor, std::string_view name,
                             std::int64_t expected) const {
  if (tensor.numel() == expected) return;
  refuse("the " + std::string(name) + " has " + std::to_string(tensor.numel()) +
         " elements instead of " + std::to_string(expected));
}

std::int64_t ArgumentCheck::counts(std::span<const std::int64_t> counts,
                                   std::string_view name) const {
  if (std::ssize(counts) != size_) {
    refuse(std::to_string(counts.size()) + " " + std::string(name) + " for " +
           std::to_string(size_) + " members");
  }
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) {
    if (count < 0) refuse("negative " + std::string(name) + ": " + std::to_string(count));
    sum += count;
  }
  return sum;
}

std::vector<std::int64_t> ArgumentCheck::counts_or_equal(std::span<const std::int64_t> counts,
                                                         const at::Tensor& whole,
                                                         std::string_view name) const {
  if (!counts.empty()) {
    elements(whole, name, this->counts(counts, "counts"));
    return {counts.begin(), counts.end()};
  }
  if (whole.numel() % size_ != 0) {
    refuse("the " + std::string(name) + "'s " + std::to_string(whole.numel()) +
               " elements are not " + std::to_string(size_) + " equal parts",
           "pass counts");
  }
  return std::vector<std::int64_t>(static_cast<std::size_t>(size_), whole.numel() / size_);
}

void ArgumentCheck::apart_or_own(const at::Tensor& part, const at::Tensor& whole,
                                 std::int64_t own) const {
  if (!share_memory(part, whole)) return;
  const auto* expected =
      static_cast<const char*>(whole.const_data_ptr()) + own * whole.element_size();
  if (part.const_data_ptr() == expected) return;
  refuse("input and output overlap, and not at this member's own part");
}

void ArgumentCheck::apart(const at::Tensor& output, const at::Tensor& input) const {
  if (share_memory(output, input)) refuse("input and output overlap");
}

void ArgumentCheck::apart(std::span<const Transfer> transfers) const {
  const auto receives = [](const Transfer& each) {
    return each.direction == Transfer::Direction::kReceive;
  };
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Transfer &one = transfers[i], &other = transfers[j];
      if (!receives(one) && !receives(other)) continue;
      if (!share_memory(one.tensor, other.tensor)) continue;
      const Transfer& received = receives(one) ? one : other;
      const Transfer& second = receives(one) ? other : one;
      refuse("the tensor received from member " + std::to_string(received.peer) +
                 " overlaps the one " + (receives(second) ? "received from" : "sent to") +
                 " member " + std::to_string(second.peer),
             "receive into memory of its own");
    }
  }
}

}  // namespace troika::detail
