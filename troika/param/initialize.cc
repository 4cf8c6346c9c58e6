// Draws initial values: each element is a function of seed, name and global index, however the
// parameter is cut.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <troika/base/random.h>
#include <troika/param/arena.h>

namespace troika {
namespace {

double draw(const Initializer& initializer, const RandomStream& stream, std::int64_t index) {
  const auto counter = static_cast<std::uint64_t>(index);
  switch (initializer.kind) {
    case Initializer::Kind::kConstant:
      return initializer.value;
    case Initializer::Kind::kNormal:
      return initializer.value * stream.normal(counter);
    case Initializer::Kind::kUniform:
      return initializer.value * (2 * stream.uniform(counter) - 1);
    case Initializer::Kind::kGiven:
      break;
  }
  return 0;
}

// Maps an index into the held slice to the index into the whole: the slice splits `dim`, so the
// slice is runs of `inner * extent` elements, one from each of the outer rows.
struct GlobalIndex {
  explicit GlobalIndex(const ParameterSpec& spec) {
    const auto dim = static_cast<std::size_t>(spec.slice ? spec.slice->dim : 0);
    for (std::size_t i = dim + 1; i < spec.shape.size(); ++i) inner *= spec.shape[i];
    if (spec.shape.empty()) return;
    whole_run = inner * spec.shape[dim];
    slice_run = spec.slice ? inner * (spec.slice->end - spec.slice->begin) : whole_run;
    begin = spec.slice ? inner * spec.slice->begin : 0;
  }
  [[nodiscard]] std::int64_t operator()(std::int64_t local) const {
    return local / slice_run * whole_run + begin + local % slice_run;
  }
  std::int64_t inner = 1, whole_run = 1, slice_run = 1, begin = 0;
};

}  // namespace

at::Tensor initial_values(const ParameterSpec& spec, std::uint64_t seed) {
  return initial_values(spec, seed, 0, spec.local_count()).view(spec.local_shape());
}

at::Tensor initial_values(const ParameterSpec& spec, std::uint64_t seed, std::int64_t begin,
                          std::int64_t count) {
  at::Tensor values = at::empty({count}, at::kDouble);
  if (count == 0) return values;
  const RandomStream stream(stream_key(seed, spec.name));
  const GlobalIndex global(spec);
  double* out = values.mutable_data_ptr<double>();
  if (spec.initializer.kind == Initializer::Kind::kGiven) {
    if (!spec.slice) {
      return values.copy_(spec.initializer.values.contiguous().view({-1}).narrow(0, begin, count));
    }
    const at::Tensor given = spec.initializer.values.to(at::kDouble).contiguous();
    const double* in = given.const_data_ptr<double>();
    for (std::int64_t i = 0; i < count; ++i) out[i] = in[global(begin + i)];
    return values;
  }
  at::parallel_for(0, count, 4096, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      out[i] = draw(spec.initializer, stream, global(begin + i));
    }
  });
  return values;
}

}  // namespace troika
