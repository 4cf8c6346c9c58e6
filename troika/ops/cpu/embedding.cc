// Gradients of embeddings on the host, added row by row in a fixed order.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

namespace troika::ops::cpu {

void add_rows_(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& rows) {
  const std::int64_t count = indices.numel(), dim = table.size(1);
  const at::Tensor source = in_rows(rows.to(table.scalar_type()));
  if (table.is_meta()) return;  // a dry run: shapes alone
  check_in_rows(table, "the table of add_rows_()");
  const at::Tensor places = in_rows(indices);
  const auto* index = places.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES(table.scalar_type(), "add_rows", [&] {
    auto* out = table.mutable_data_ptr<scalar_t>();
    const auto* in = source.const_data_ptr<scalar_t>();
    // Threads own columns, not rows: each adds its columns of all rows in order.
    at::parallel_for(0, dim, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = 0; n < count; ++n) {
        scalar_t* to = out + index[n] * dim;
        const scalar_t* from = in + n * dim;
        for (std::int64_t column = begin; column < end; ++column) to[column] += from[column];
      }
    });
  });
}

}  // namespace troika::ops::cpu
