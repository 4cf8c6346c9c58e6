// The multi-layer perceptron as one module: for losses whose derivatives lead through all of it.
// Internal to this folder.
#pragma once

#include <troika/models/mlp/options.h>
#include <troika/models/row/row_model.h>

namespace troika {

// Returns the network as a row of one unit without a loss, with the parameters and initial values
// of build_mlp(). `sample` is what it is trained on.
[[nodiscard]] RowModel mlp_row(const MlpOptions& options, SampleSpec sample);

}  // namespace troika
