// A table of rows that are addressed by number, such as the embeddings of words, users or items:
// the part of it that one server keeps, in one piece of memory that grows as rows are asked for. A
// row that has never been asked for takes none. Updates change the rows that they name, and no
// others: moments and squares of the rest stay as they are.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/random.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troika {

// Names how a row is updated, of gradient g and learning rate lr.
//   kSgd:     w -= lr g
//   kAdagrad: a += g^2;  w -= lr g / (sqrt(a) + eps)  (Duchi et al. 2011)
//   kAdam:    Adam (Kingma and Ba 2015) on the rows of an update alone, with its bias corrected by
//             the updates of the whole table
enum class RowRule { kSgd, kAdagrad, kAdam };
[[nodiscard]] std::span<const std::string_view> row_rule_names();

struct RowTableSpec {
  std::string name;
  std::int64_t columns = 0;
  // A new row is uniform around zero, of this deviation, and the same for a (seed, name, row) on
  // any server.
  double initial_std = 0.01;
  std::uint64_t seed = 0;
  RowRule rule = RowRule::kAdagrad;
  double lr_factor = 1;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  bool operator==(const RowTableSpec&) const = default;
};

// Holds what is pushed of a table: `values` [rows, columns] for `ids` [rows], int64, each once.
struct RowGradients {
  RowTableSpec spec;
  at::Tensor ids, values;
};

// Returns the server that keeps a row.
[[nodiscard]] int shard_of_row(std::int64_t id, int shards);

// Returns the sum of what workers have pushed of one table, in their order.
[[nodiscard]] RowGradients sum_of_rows(std::span<const RowGradients> pushed);

class RowTable {
 public:
  // `type` is fp32 or fp64.
  RowTable(RowTableSpec spec, at::ScalarType type);

  [[nodiscard]] const RowTableSpec& spec() const { return spec_; }
  // Returns the number of rows that there are.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(ids_.size()); }
  // Returns rows [ids, columns]; makes those that are not there.
  [[nodiscard]] at::Tensor read(const at::Tensor& ids);
  // Applies a gradient. `step` counts the updates of the table, this one included. Throws DataError
  // where a shape or type is another.
  void update(const RowGradients& gradients, double learning_rate, double scale, std::int64_t step);

  // Holds all there is, for a file: ids [size], values and each kind of state [size, columns].
  struct Content {
    at::Tensor ids, values;
    std::vector<at::Tensor> states;
  };
  [[nodiscard]] Content content() const;
  // Throws DataError where it is of another table.
  void restore(const Content& content);

 private:
  [[nodiscard]] at::Tensor slots_of(const at::Tensor& ids);
  void reserve(std::int64_t rows);
  template <class T>
  void draw_row(const RandomStream& random, std::int64_t slot);
  [[nodiscard]] std::int64_t states() const;

  RowTableSpec spec_;
  at::ScalarType type_;
  std::unordered_map<std::int64_t, std::int64_t> slots_;  // by row
  std::vector<std::int64_t> ids_;                         // by slot
  at::Tensor values_;                                     // [capacity, columns]
  std::vector<at::Tensor> states_;                        // likewise
};

}  // namespace troika
