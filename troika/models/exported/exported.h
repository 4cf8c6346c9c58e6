// Builds the unit of an exported program. Internal to this folder.
#pragma once

#include <troika/models/exported/options.h>
#include <troika/models/row/row_model.h>

namespace troika {

// Completes what a recipe says of the program's tensors from its file. A recipe that is complete,
// as that of a run is, does not need the file. Throws UsageError where it is needed and cannot be
// read, or has other tensors than the recipe says.
void complete_from_file(ExportedOptions& options);

// Returns its tensors as data have them, and where its own loss stands among them.
[[nodiscard]] NetworkFile network_of(const ExportedOptions& options);

// Returns the program as a row of one unit; not yet read. Requires completed options.
[[nodiscard]] RowModel exported_row(const ExportedOptions& options, const LossOptions& loss);

}  // namespace troika
