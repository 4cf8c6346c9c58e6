// Columns of the data that predictions carry along, such as the id of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troika {

enum class KeptType { kText, kInteger, kNumber };

struct KeptColumn {
  std::string name;
  KeptType type = KeptType::kText;
};

// The values of a column for some samples, in the vector of its type.
struct KeptValues {
  std::vector<std::uint8_t> there;  // 0 where there is no value
  std::vector<std::int64_t> integers;
  std::vector<double> numbers;
  std::vector<std::string> texts;
};

// Not thread safe.
class KeptColumns {
 public:
  virtual ~KeptColumns() = default;
  [[nodiscard]] virtual std::span<const KeptColumn> columns() const = 0;
  // Returns the values of each column for samples with these ids, int64 [samples]. Fastest where
  // ids ascend. Throws DataError naming a value that cannot be kept.
  [[nodiscard]] virtual std::vector<KeptValues> values(const at::Tensor& sample_ids) = 0;
};

}  // namespace troika
