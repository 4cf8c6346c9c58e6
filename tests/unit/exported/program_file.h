// Writes archives as torch.export.save() does, with any text of JSON as their program.
#pragma once

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace troika::test {

using Json = nlohmann::json;

inline Json tensor_argument(const std::string& name) {
  return {{"as_tensor", {{"name", name}}}};
}

// An argument of a node, by its name in the schema of the operator.
inline Json named(const std::string& name, Json argument) {
  return {{"name", name}, {"arg", std::move(argument)}, {"kind", 1}};
}

inline Json node(const std::string& target, Json inputs, const std::string& output) {
  return {{"target", target},
          {"inputs", std::move(inputs)},
          {"outputs", Json::array({tensor_argument(output)})},
          {"metadata", {{"stack_trace", "File \"net.py\", line 7, in forward\n    y = f(x)"}}},
          {"name", output}};
}

// The description of a float32 tensor; an extent below 0 is a dynamic one.
inline Json meta(const std::vector<std::int64_t>& sizes, bool requires_grad = false) {
  Json shape = Json::array(), strides = Json::array();
  std::int64_t stride = 1;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    strides.insert(strides.begin(), Json{{"as_int", stride}});
    stride *= std::max<std::int64_t>(*size, 1);
  }
  for (const std::int64_t size : sizes) {
    shape.push_back(size < 0 ? Json{{"as_expr", {{"expr_str", "s0"}}}} : Json{{"as_int", size}});
  }
  return {{"dtype", 7},
          {"sizes", shape},
          {"requires_grad", requires_grad},
          {"device", {{"type", "cpu"}}},
          {"strides", strides},
          {"storage_offset", {{"as_int", 0}}},
          {"layout", 7}};
}

// relu(linear(x, weight)) of x [n, 3] and weight [2, 3].
inline Json linear_program() {
  Json graph = {
      {"inputs", {tensor_argument("p_weight"), tensor_argument("x")}},
      {"outputs", {tensor_argument("relu")}},
      {"nodes",
       {node("torch.ops.aten.linear.default",
             {named("input", tensor_argument("x")), named("weight", tensor_argument("p_weight"))},
             "linear"),
        node("torch.ops.aten.relu.default", {named("self", tensor_argument("linear"))}, "relu")}},
      {"tensor_values", {{"x", meta({-1, 3})}, {"linear", meta({-1, 2})}, {"relu", meta({-1, 2})}}},
      {"sym_int_values", Json::object()},
      {"sym_bool_values", Json::object()}};
  Json signature = {
      {"input_specs",
       {{{"parameter", {{"arg", {{"name", "p_weight"}}}, {"parameter_name", "body.weight"}}}},
        {{"user_input", {{"arg", tensor_argument("x")}}}}}},
      {"output_specs", Json::array({{{"user_output", {{"arg", tensor_argument("relu")}}}}})}};
  return {{"graph_module",
           {{"graph", graph}, {"signature", signature}, {"module_call_graph", Json::array()}}},
          {"opset_version", {{"aten", 10}}},
          {"range_constraints", Json::object()},
          {"verifiers", {"TRAINING"}},
          {"schema_version", {{"major", 8}, {"minor", 17}}}};
}

inline Json linear_weights() {
  return {{"config",
           {{"body.weight",
             {{"path_name", "weight_0"},
              {"is_param", true},
              {"use_pickle", false},
              {"tensor_meta", meta({2, 3}, true)}}}}}};
}

// Writes the program with the weights 1 to 6, and 7 and 8 behind them.
inline void write_program(const std::filesystem::path& path, const std::string& program,
                          const std::string& weights = linear_weights().dump()) {
  caffe2::serialize::PyTorchStreamWriter writer(path.string());
  const auto write = [&](const std::string& name, const std::string& text) {
    writer.writeRecord(name, text.data(), text.size());
  };
  const at::Tensor values = at::arange(1, 9, at::kFloat);
  writer.writeRecord("data/weights/weight_0", values.const_data_ptr(), values.nbytes());
  write("data/weights/model_weights_config.json", weights);
  write("models/model.json", program);
  write("archive_format", "pt2");
  writer.writeEndOfFile();
}

}  // namespace troika::test
