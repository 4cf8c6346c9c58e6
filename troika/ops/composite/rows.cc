// Rows of tables, and rows turned by their positions.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>

namespace troika::ops::composite {

void add_rows_(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& rows) {
  table.index_add_(0, indices.view({-1}), rows.to(table.scalar_type()));
}

void rotate_(const at::Tensor& heads, const at::Tensor& positions, const at::Tensor& table,
             bool backward) {
  const std::int64_t half = table.size(2);
  const at::Tensor each = heads.view({heads.size(0), -1, 2, half}).to(table.scalar_type());
  const at::Tensor first = each.select(2, 0), second = each.select(2, 1);
  const at::Tensor turns = table.index_select(1, positions.view({-1})).unsqueeze(2);
  const at::Tensor cosine = turns[0], sine = backward ? turns[1].neg() : turns[1];
  heads.copy_(at::stack({first * cosine - second * sine, second * cosine + first * sine}, 2)
                  .view(heads.sizes()));
}

}  // namespace troika::ops::composite
