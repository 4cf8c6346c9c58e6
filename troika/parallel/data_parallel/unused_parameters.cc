#include <troika/parallel/data_parallel/unused_parameters.h>

#include <ATen/ATen.h>

namespace troika::detail {

UnusedParameters::UnusedParameters(std::span<const GradientSlot> slots, Session session,
                                   Policy policy)
    : slots_(slots), session_(std::move(session)), policy_(policy) {
  if (policy_ == Policy::kRefuse) return;
  users_ = session_.world().allocate(slots_.size() * sizeof(std::int32_t)).view(at::kInt);
}

ValidationError UnusedParameters::validate() const {
  if (!are_refused()) return {};
  return {title_of(slots_, unused_) + " got no gradient in the backward pass",
          "leave them out of the module, freeze them with requires_grad_(false) before "
          "DataParallel is made, or allow it with options.unused = Unused::kAllow"};
}

void UnusedParameters::start_count(bool present) {
  if (!users_.defined()) return;
  users_.fill_(present ? 1 : 0);
  for (const std::size_t index : unused_) users_.data_ptr<std::int32_t>()[index] = 0;
  counting_ = session_.world().all_reduce(users_, ReduceOp::kSum, session_.call("used parameters"));
}

std::span<const std::int32_t> UnusedParameters::users() const {
  if (!users_.defined()) return {};
  return {users_.const_data_ptr<std::int32_t>(), slots_.size()};
}

}  // namespace troika::detail
