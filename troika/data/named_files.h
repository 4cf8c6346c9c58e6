// What a data set implements whose samples name further files, such as a table with a column of
// paths of images.
#pragma once

#include <troika/data/dataset.h>

#include <stop_token>
#include <vector>

namespace troika {

class NamesFiles {
 public:
  virtual ~NamesFiles() = default;
  // Returns the files that samples name, in their order, without those of Dataset::files(). Reads
  // all samples for it, until it is told to stop: call it in the background. Thread safe. Throws
  // DataError naming a file that cannot be read.
  [[nodiscard]] virtual std::vector<DataFile> named_files(const std::stop_token& stop) const = 0;
};

}  // namespace troika
