#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/server/messages.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace troika::messages {

Json json_of(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

double number_of(const Json& json, const char* key) {
  if (json.contains(key) && json.at(key).is_string()) {
    const auto text = value<std::string>(json, key);
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
  }
  return value<double>(json, key);
}

Json parse(std::string_view header, std::string_view what) {
  Json json = Json::parse(header, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw DataError("a message to " + std::string(what) + " is no JSON object",
                    "do all processes run the same version of troika?");
  }
  return json;
}

Json json_of(const ShardSegment& segment) {
  Json json = {{"name", segment.name},
               {"count", segment.count},
               {"decays", segment.decays},
               {"lr_factor", segment.lr_factor}};
  if (segment.weight_decay) json["weight_decay"] = *segment.weight_decay;
  return json;
}

ShardSegment segment_of(const Json& json) {
  ShardSegment segment{value<std::string>(json, "name"),
                       value<std::int64_t>(json, "count"),
                       value<bool>(json, "decays"),
                       value<double>(json, "lr_factor"),
                       {}};
  if (segment.count < 1) throw DataError("a message of another process has an empty parameter");
  if (json.contains("weight_decay")) segment.weight_decay = value<double>(json, "weight_decay");
  return segment;
}

Json json_of(const PushedUpdate& update) {
  return {{"worker", update.worker}, {"turn", update.turn},
          {"base", update.version},  {"lr", update.learning_rate},
          {"scale", update.scale},   {"divided", update.divided_by_staleness},
          {"report", update.report}, {"workers", update.workers}};
}

namespace {
// A push is one of so many in a round; a message may say anything.
std::int64_t workers_of(const Json& json) {
  const auto workers = value<std::int64_t>(json, "workers");
  if (workers < 1) throw DataError("a message of another process names a job without workers");
  return workers;
}
}  // namespace

PushedUpdate update_of(const Json& json) {
  return {value<int>(json, "worker"),         value<std::int64_t>(json, "turn"),
          value<std::int64_t>(json, "base"),  value<double>(json, "lr"),
          value<double>(json, "scale"),       value<bool>(json, "divided"),
          value<std::string>(json, "report"), workers_of(json)};
}

Json json_of(const Assignment& assignment) {
  return {{"turn", assignment.turn},
          {"step", assignment.step},
          {"first", assignment.samples.first},
          {"count", assignment.samples.count},
          {"workers", assignment.workers}};
}

Assignment assignment_of(const Json& json) {
  return {value<std::int64_t>(json, "turn"),
          value<std::int64_t>(json, "step"),
          {value<std::int64_t>(json, "first"), value<std::int64_t>(json, "count")},
          workers_of(json)};
}

Json json_of(const WorkerReport& report) {
  return {{"loss", json_of(report.loss)}, {"weight", report.weight},
          {"valid", report.valid},        {"norm", json_of(report.norm)},
          {"lr", report.learning_rate},   {"staleness", report.staleness},
          {"skipped", report.skipped}};
}

WorkerReport report_of(const Json& json) {
  return {number_of(json, "loss"),
          value<double>(json, "weight"),
          value<std::int64_t>(json, "valid"),
          number_of(json, "norm"),
          value<double>(json, "lr"),
          value<std::int64_t>(json, "staleness"),
          value<std::string>(json, "skipped")};
}

Json json_of(const RowTableSpec& spec) {
  return {{"name", spec.name},
          {"columns", spec.columns},
          {"initial_std", spec.initial_std},
          {"seed", spec.seed},
          {"rule", row_rule_names()[static_cast<std::size_t>(spec.rule)]},
          {"lr_factor", spec.lr_factor},
          {"beta1", spec.beta1},
          {"beta2", spec.beta2},
          {"eps", spec.eps}};
}

RowTableSpec table_of(const Json& json) {
  const auto rule = value<std::string>(json, "rule");
  const std::span<const std::string_view> rules = row_rule_names();
  const auto found = std::ranges::find(rules, rule);
  if (found == rules.end()) {
    throw DataError("a message of another process names the rule '" + rule + "' for rows");
  }
  RowTableSpec spec;
  spec.name = value<std::string>(json, "name");
  spec.columns = value<std::int64_t>(json, "columns");
  spec.initial_std = value<double>(json, "initial_std");
  spec.seed = value<std::uint64_t>(json, "seed");
  spec.rule = static_cast<RowRule>(found - rules.begin());
  spec.lr_factor = value<double>(json, "lr_factor");
  spec.beta1 = value<double>(json, "beta1");
  spec.beta2 = value<double>(json, "beta2");
  spec.eps = value<double>(json, "eps");
  return spec;
}

void add_rows(Json& header, std::vector<std::span<const std::byte>>& body,
              std::span<const RowGradients> rows) {
  if (rows.empty()) return;
  header["tables"] = Json::array();
  for (const RowGradients& each : rows) {
    Json json = json_of(each.spec);
    json["rows"] = each.ids.numel();
    header["tables"].push_back(std::move(json));
    body.push_back(bytes_of(each.ids));
  }
  for (const RowGradients& each : rows) body.push_back(bytes_of(each.values));
}

std::vector<RowGradients> take_rows(const Json& header, std::span<const std::byte>& body,
                                    at::ScalarType type) {
  std::vector<RowGradients> rows;
  if (!header.contains("tables")) return rows;
  const auto take = [&](std::int64_t count, at::ScalarType of) {
    const std::size_t each = c10::elementSize(of);
    if (count < 0 || static_cast<std::uint64_t>(count) > body.size() / each) {
      throw DataError("a message of another process names more rows than it has");
    }
    const std::size_t bytes = static_cast<std::size_t>(count) * each;
    const at::Tensor taken = tensor_on(body.first(bytes), of).clone();
    body = body.subspan(bytes);
    return taken;
  };
  for (const Json& json : value<Json>(header, "tables")) {
    RowGradients each;
    each.spec = table_of(json);
    each.ids = take(value<std::int64_t>(json, "rows"), at::kLong);
    rows.push_back(std::move(each));
  }
  for (RowGradients& each : rows) {
    const std::int64_t columns = each.spec.columns;
    if (columns < 1 || columns > std::numeric_limits<std::int32_t>::max()) {
      throw DataError("a message of another process names a table of " + std::to_string(columns) +
                      " columns");
    }
    const auto most = static_cast<std::int64_t>(body.size() / c10::elementSize(type));
    if (each.ids.numel() > most / columns) {
      throw DataError("a message of another process names more rows than it has");
    }
    each.values = take(each.ids.numel() * columns, type).view({each.ids.numel(), columns});
  }
  return rows;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  check(tensor.is_contiguous() && tensor.device().is_cpu(), "a tensor of the host, end to end");
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

at::Tensor tensor_on(std::span<const std::byte> bytes, at::ScalarType type) {
  const std::size_t size = c10::elementSize(type);
  if (bytes.size() % size != 0) throw DataError("a message of another process is cut off");
  return at::from_blob(const_cast<std::byte*>(bytes.data()),  // NOLINT: it is only read
                       {static_cast<std::int64_t>(bytes.size() / size)}, at::TensorOptions(type));
}

}  // namespace troika::messages
