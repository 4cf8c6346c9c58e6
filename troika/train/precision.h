// From the recipe's precision to the types that a run computes and remembers in.
#pragma once

#include <troika/device/choose.h>
#include <troika/device/numerics.h>
#include <troika/param/arena.h>
#include <troika/recipe/recipe.h>

namespace troika {

// Resolves `auto` to bf16 where the device multiplies it natively (device/facts.h), else to fp32.
// Any other precision stays as it is.
[[nodiscard]] Precision resolve_precision(Precision precision, at::Device device);
// Resolves the recipe's for a rank at `place`. A device that is not here, as in a dry run for other
// hosts, counts as one with bf16.
[[nodiscard]] Precision resolve_precision(const TrainOptions& train, HostPosition place);

// Returns the types of a run. fp64 computes and keeps state in fp64. All others keep state
// (masters, gradients, optimiser state) in fp32. Throws InternalError for kAuto.
[[nodiscard]] NumericTypes numeric_types(Precision precision);

// Returns what the recipe says of LibTorch's choices on a device.
[[nodiscard]] NumericSettings numeric_settings(const TrainOptions& train);

// Returns the factor of a microbatch's loss before it is differentiated, when a step sums `targets`
// of them and a scaler gives `scale`. In fp16 and bf16 gradients of sums are divided by the power
// of two nearest to `targets`, so that they have the size of a mean's. The clip factor divides out
// the exact rest. The result is a power of two, and 1 in fp32 and fp64.
[[nodiscard]] double loss_scale_for(Precision precision, double targets, double scale);

}  // namespace troika
