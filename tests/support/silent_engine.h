// A GroupEngine that does nothing: tests derive from it what they look at.
#pragma once

#include <troika/comm/group.h>

namespace troika::test {

class SilentEngine : public GroupEngine {
 public:
  [[nodiscard]] std::string_view name() const override { return "silent"; }
  Work all_reduce(const at::Tensor&, ReduceOp, const Call&) override { return {}; }
  Work reduce_scatter(const at::Tensor&, const at::Tensor&, std::span<const std::int64_t>, ReduceOp,
                      const Call&) override {
    return {};
  }
  Work all_gather(const at::Tensor&, const at::Tensor&, std::span<const std::int64_t>,
                  const Call&) override {
    return {};
  }
  Work all_to_all(const at::Tensor&, std::span<const std::int64_t>, const at::Tensor&,
                  std::span<const std::int64_t>, const Call&) override {
    return {};
  }
  Work broadcast(const at::Tensor&, int, const Call&) override { return {}; }
  Work gather(const at::Tensor&, const at::Tensor&, int, const Call&) override { return {}; }
  Work scatter(const at::Tensor&, const at::Tensor&, int, const Call&) override { return {}; }
  Work exchange(std::span<const Transfer>, const Call&) override { return {}; }
  Work barrier(const Call&) override { return {}; }
  void abort(const std::string&) override {}
};

}  // namespace troika::test
