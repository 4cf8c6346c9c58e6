// Finds ranks that start from another model: other files, or other initial values.
#pragma once

#include <troika/models/kind.h>
#include <troika/param/named_tensor.h>
#include <troika/session/session.h>

#include <vector>

namespace troika {

// Throws UsageError, on every rank, unless all ranks have the same files of the model and the same
// `values`: names, shapes and bits. Collective. Throws DeadlineError, PeerError.
void agree_on_model(const Session& session, const ModelOptions& model,
                    const std::vector<NamedTensor>& values);

}  // namespace troika
