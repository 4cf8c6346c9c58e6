// Standard input, output and error, which a program may find closed when it starts.
#pragma once

namespace troika {

// Opens those of the descriptors 0 to 2 that are closed, on the null device, so that no other file
// takes their number and then receives what is written to standard output or error. Standard input
// is then empty, and a write to the others fails, as it does to a closed descriptor. Call it first
// in main(), before anything is opened.
void open_standard_descriptors();

}  // namespace troika
