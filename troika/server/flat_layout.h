// How the parameters of a model lie end to end on servers, for processes that hold parts of it. It
// is the order in which the arena of the coordinator has them, whose one rank holds all of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/arena.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct FlatLayout {
  struct Parameter {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t element_size = 0;  // bytes of an element of its value
    [[nodiscard]] std::int64_t count() const;
    [[nodiscard]] std::int64_t bytes() const { return count() * element_size; }
  };
  std::vector<Parameter> trained = {};  // on servers
  std::vector<Parameter> frozen = {};   // which the coordinator has

  // Describes an arena that this rank holds whole.
  [[nodiscard]] static FlatLayout of(const Arena& arena);
  // Read and write text. Reading throws DataError.
  [[nodiscard]] static FlatLayout from(std::string_view text);
  [[nodiscard]] std::string text() const;

  // Returns the values of the trained ones.
  [[nodiscard]] std::int64_t size() const;
};

[[nodiscard]] bool has_frozen(const Arena& arena);
// Returns the values of frozen parameters as bytes, each in its own type, end to end on the host.
[[nodiscard]] at::Tensor frozen_values(const Arena& arena);
// Puts such values in the parts of them that an arena has. They have to be gathered. Throws
// DataError where they are of another model.
void take_frozen(Arena& arena, const FlatLayout& layout, const at::Tensor& values);

// Copies a whole parameter of the host to this rank's parts of it.
void take_parameter(Arena& arena, const FlatLayout::Parameter& parameter, const at::Tensor& whole);

}  // namespace troika
