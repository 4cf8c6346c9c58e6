// From the recipe's precision to the types that a run computes and remembers in.
#pragma once

#include <troika/param/arena.h>
#include <troika/recipe/recipe.h>

namespace troika {

// `auto` is bf16 where this machine multiplies it natively (AMX or AVX512-BF16), else fp32.
// Anything else stays as it is.
[[nodiscard]] Precision resolve_precision(Precision precision);

// fp64 computes and remembers in fp64; all others remember (masters, gradients, optimiser state) in
// fp32. Throws InternalError for kAuto.
[[nodiscard]] NumericTypes numeric_types(Precision precision);

// What the loss of a microbatch is multiplied by before it is differentiated, when a step sums
// `targets` of them and a scaler gives `scale`. In fp16 and bf16 gradients of sums are divided by
// the power of two nearest to `targets`, so that they have the size of a mean's; the exact rest is
// divided out with the clip factor. A power of two, and 1 in fp32 and fp64.
[[nodiscard]] double loss_scale_for(Precision precision, double targets, double scale);

}  // namespace troika
