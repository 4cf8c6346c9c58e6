// Internal: what processes of a job with servers tell each other, as the headers of requests. Every
// reader throws DataError naming the method where a header is not what it should be.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/error.h>
#include <troika/server/coordinator.h>
#include <troika/server/row_table.h>
#include <troika/server/server_shard.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika::messages {

using Json = nlohmann::json;

// Parses a header. `what` names it in errors.
[[nodiscard]] Json parse(std::string_view header, std::string_view what);
// Returns a value of a header.
template <class T>
[[nodiscard]] T value(const Json& json, const char* key) {
  try {
    return json.at(key).get<T>();
  } catch (const Json::exception&) {
    throw DataError(
        "a message of another process lacks '" + std::string(key) + "', or has another type of it",
        "do all processes run the same version of troika?");
  }
}

// Write and read a number that may not be finite, which JSON does not have.
[[nodiscard]] Json json_of(double number);
[[nodiscard]] double number_of(const Json& json, const char* key);

[[nodiscard]] Json json_of(const ShardSegment& segment);
[[nodiscard]] ShardSegment segment_of(const Json& json);
[[nodiscard]] Json json_of(const PushedUpdate& update);
[[nodiscard]] PushedUpdate update_of(const Json& json);
[[nodiscard]] Json json_of(const Assignment& assignment);
[[nodiscard]] Assignment assignment_of(const Json& json);
[[nodiscard]] Json json_of(const WorkerReport& report);
[[nodiscard]] WorkerReport report_of(const Json& json);

[[nodiscard]] Json json_of(const RowTableSpec& spec);
[[nodiscard]] RowTableSpec table_of(const Json& json);

// Adds what is pushed of tables to a message: to its header, as "tables", and to its body, all ids
// and then all values. What is said by `rows` has to stay until it is sent.
void add_rows(Json& header, std::vector<std::span<const std::byte>>& body,
              std::span<const RowGradients> rows);
// Takes it off the front of a body. The tensors lie in it, or in memory of their own.
[[nodiscard]] std::vector<RowGradients> take_rows(const Json& header,
                                                  std::span<const std::byte>& body,
                                                  at::ScalarType type);

// Returns the bytes of a contiguous tensor of the host.
[[nodiscard]] std::span<std::byte> bytes_of(const at::Tensor& tensor);
// Returns a tensor [elements] on memory that the caller keeps. Throws DataError where the bytes are
// no whole elements.
[[nodiscard]] at::Tensor tensor_on(std::span<const std::byte> bytes, at::ScalarType type);

}  // namespace troika::messages
