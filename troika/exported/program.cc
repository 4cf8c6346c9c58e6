#include <ATen/ATen.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/exported/graph_builder.h>
#include <troika/exported/program.h>

#include <algorithm>
#include <map>
#include <set>

namespace troika {
namespace {

constexpr std::size_t kLargestProgram = std::size_t{1} << 29;  // bytes of JSON
constexpr const char* kProgram = "models/model.json";

using Payloads = std::unordered_map<std::string, schema::PayloadMeta>;

class ProgramReader {
 public:
  explicit ProgramReader(const ExportArchive& archive)
      : archive_(archive), file_(shown_path(archive.path())) {}

  Program read() {
    const auto source = record<schema::ExportedProgram>(kProgram);
    weights_ = payloads("data/weights/model_weights_config.json");
    constants_ = payloads("data/constants/model_constants_config.json");
    check_dialect(source);
    ranges_ = source.get_range_constraints();
    const schema::GraphModule& module = source.get_graph_module();
    if (module.get_graph().get_outputs().empty()) fail("holds no program that returns anything");
    const BuiltGraph built = build_graph(module.get_graph(), file_);
    Program program;
    program.graph = built.graph;
    take_inputs(module, built.written, program);
    take_outputs(module, program);
    return program;
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& hint = "") const {
    throw UsageError(file_ + ": " + what, hint);
  }

  // run_decompositions() leaves no detach() and no no_grad(): what they cut off would be trained.
  void check_dialect(const schema::ExportedProgram& source) const {
    constexpr std::int64_t kSchema = 8;
    if (source.get_schema_version().get_major() != kSchema) {
      fail("is of version " + std::to_string(source.get_schema_version().get_major()) +
               " of the schema, not " + std::to_string(kSchema),
           "export the network again, with PyTorch 2.11");
    }
    const auto& dialects = source.get_verifiers();
    if (std::ranges::find(dialects, "TRAINING") != dialects.end()) return;
    fail("comes of run_decompositions(), which drops detach() and no_grad()",
         "save what torch.export.export() returns");
  }

  template <class T>
  T record(const std::string& name) const {
    const std::span<const std::byte> bytes = archive_.content(name);
    if (bytes.size() > kLargestProgram) fail("its program has more than 512 MiB of text");
    try {
      return schema::parsed(text_of(bytes)).get<T>();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::string text = error.what();
      fail(name + " is not as this version of PyTorch writes it: " + text.substr(0, 200),
           "export the network again, with PyTorch 2.11");
    }
  }

  Payloads payloads(const std::string& name) const {
    const auto names = archive_.names();
    if (!std::ranges::binary_search(names, name)) return {};
    return record<schema::PayloadConfig>(name).get_config();
  }

  std::int64_t number(const schema::SymInt& size, const std::string& of) const {
    if (size.tag() == schema::SymInt::Tag::AS_INT) return size.get_as_int();
    fail(quote(of, 200) + " has a size that is no number");
  }

  at::ScalarType type(schema::ScalarType named, const std::string& of) const {
    const auto type = schema::type_of(named);
    if (!type) fail(quote(of, 200) + " is of a type of numbers that is not known here");
    return *type;
  }

  StoredTensor stored(const Payloads& payloads, const std::string& folder,
                      const std::string& name) const {
    const auto found = payloads.find(name);
    if (found == payloads.end()) fail("holds no values of " + quote(name, 200));
    check_name(name);
    const schema::PayloadMeta& payload = found->second;
    if (payload.get_use_pickle() || !payload.get_tensor_meta()) {
      fail(quote(name, 200) + " is pickled, and is not read", "a pickle can run any code");
    }
    const schema::TensorMeta& meta = *payload.get_tensor_meta();
    if (meta.get_layout() != schema::Layout::Strided) fail(quote(name, 200) + " is not dense");
    StoredTensor tensor;
    tensor.record = folder + payload.get_path_name();
    tensor.type = type(meta.get_dtype(), name);
    for (const auto& each : meta.get_sizes()) tensor.sizes.push_back(number(each, name));
    for (const auto& each : meta.get_strides()) tensor.strides.push_back(number(each, name));
    tensor.offset = number(meta.get_storage_offset(), name);
    tensor.requires_grad = meta.get_requires_grad();
    return tensor;
  }

  // A name becomes a path of modules.
  void check_name(const std::string& name) const {
    constexpr std::size_t kLongest = 1000, kDeepest = 64;
    const bool has_empty = name.empty() || name.front() == '.' || name.back() == '.' ||
                           name.find("..") != std::string::npos;
    if (has_empty || name.size() > kLongest ||
        static_cast<std::size_t>(std::ranges::count(name, '.')) > kDeepest) {
      fail("has a tensor of the name " + quote(name, 100) + ", which is no path of modules");
    }
  }

  // What a dynamic extent may be, where it stands for itself: "Symbol('s77', ...)" or "s77". Each
  // is written with 2 at least, which torch.export itself does not hold it to.
  [[nodiscard]] ExportedTensor::Range range_of(const schema::SymInt& size) const {
    std::string symbol = size.get_as_expr().get_expr_str();
    const std::size_t quoted = symbol.find('\'');
    if (symbol.starts_with("Symbol(") && quoted != std::string::npos) {
      symbol = symbol.substr(quoted + 1, symbol.find('\'', quoted + 1) - quoted - 1);
    }
    ExportedTensor::Range range;
    const auto found = ranges_.find(symbol);
    if (found == ranges_.end()) return range;
    constexpr std::int64_t kAlways = 2;
    const auto least = found->second.get_min_val();
    if (least && *least > kAlways) range.least = *least;
    if (found->second.get_max_val()) range.most = *found->second.get_max_val();
    return range;
  }

  ExportedTensor described(const schema::Graph& graph, const std::string& value,
                           const std::string& name) const {
    const auto found = graph.get_tensor_values().find(value);
    if (found == graph.get_tensor_values().end()) fail("says nothing of " + quote(value, 200));
    ExportedTensor tensor{name, type(found->second.get_dtype(), name), {}, {}};
    for (const schema::SymInt& each : found->second.get_sizes()) {
      const bool is_number = each.tag() == schema::SymInt::Tag::AS_INT;
      tensor.sizes.push_back(is_number ? std::optional(each.get_as_int()) : std::nullopt);
      tensor.ranges.push_back(is_number ? ExportedTensor::Range() : range_of(each));
    }
    return tensor;
  }

  void take_inputs(const schema::GraphModule& module, const std::set<std::string>& written,
                   Program& program) const {
    using Kind = ProgramInput::Kind;
    using Tag = schema::InputSpec::Tag;
    const auto& specs = module.get_signature().get_input_specs();
    if (specs.size() != program.graph->inputs.size()) fail("its signature is not of its graph");
    for (const schema::InputSpec& spec : specs) {
      ProgramInput& input = program.inputs.emplace_back();
      std::string value;
      switch (spec.tag()) {
        case Tag::PARAMETER:
          input.kind = Kind::kParameter;
          input.name = spec.get_parameter().get_parameter_name();
          input.stored = stored(weights_, "weights/", input.name);
          value = spec.get_parameter().get_arg().get_name();
          if (input.stored.type != at::kFloat && input.stored.type != at::kDouble) {
            fail("parameter " + quote(input.name, 200) + " is " + c10::toString(input.stored.type) +
                     ", and float32 or float64 are trained",
                 "export network.float(); train.precision says what the run computes in");
          }
          if (written.contains(value)) {
            fail("writes to its parameter " + quote(input.name, 200), "only a buffer may change");
          }
          break;
        case Tag::BUFFER:
          input.kind = Kind::kBuffer;
          input.name = spec.get_buffer().get_buffer_name();
          input.is_persistent = spec.get_buffer().get_persistent();
          input.stored = input.is_persistent ? stored(weights_, "weights/", input.name)
                                             : stored(constants_, "constants/", input.name);
          input.is_written = written.contains(spec.get_buffer().get_arg().get_name());
          break;
        case Tag::TENSOR_CONSTANT:
          input.kind = Kind::kConstant;
          input.name = spec.get_tensor_constant().get_tensor_constant_name();
          input.stored = stored(constants_, "constants/", input.name);
          input.is_written = written.contains(spec.get_tensor_constant().get_arg().get_name());
          break;
        case Tag::USER_INPUT:
          take_user_input(spec.get_user_input().get_arg(), module.get_graph(), written, input);
          break;
        case Tag::CONSTANT_INPUT:
          break;  // its value stands where it is used
        default:
          fail("takes an object that is no tensor", "custom objects and tokens are not run");
      }
    }
  }

  void take_user_input(const schema::Argument& argument, const schema::Graph& graph,
                       const std::set<std::string>& written, ProgramInput& input) const {
    if (argument.tag() == schema::Argument::Tag::AS_NONE) return;
    if (argument.tag() != schema::Argument::Tag::AS_TENSOR) {
      fail("takes a number beside its tensors",
           "a number of torch.export's example inputs is not to be dynamic");
    }
    const std::string& name = argument.get_as_tensor().get_name();
    input.kind = ProgramInput::Kind::kGiven;
    input.name = name;
    input.given = described(graph, name, name);
    if (c10::isComplexType(input.given.type)) {
      fail("takes complex numbers as " + quote(name, 200),
           "let forward() call torch.view_as_complex()");
    }
    if (!written.contains(name)) return;
    fail("writes to its input " + quote(name, 200), "let forward() write to a copy: x.clone()");
  }

  // The names that forward() gives what it returns: the keys of a dictionary or a dataclass. Values
  // of a list at a key are counted: "hidden_states_1". Empty where it returns none by name.
  std::vector<std::string> result_names(const schema::GraphModule& module) const {
    const auto& calls = module.get_module_call_graph();
    const auto root = std::ranges::find(calls, std::string(), &schema::ModuleCallEntry::get_fqn);
    if (root == calls.end() || !root->get_signature()) return {};
    try {
      const auto tree = schema::parsed(root->get_signature()->get_out_spec());
      const auto& top = tree.at(1);
      const auto keys = schema::parsed(top.at("context").get<std::string>());
      if (!keys.is_array()) return {};
      std::vector<std::string> names;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        add_names(top.at("children_spec").at(i), keys[i].get<std::string>(), names);
      }
      return names;
    } catch (const std::exception&) {
      return {};  // results are then counted
    }
  }
  static void add_names(const nlohmann::json& spec, const std::string& name,
                        std::vector<std::string>& names) {
    const auto& children = spec.at("children_spec");
    const bool is_leaf = spec.at("type").is_null();
    if (is_leaf) names.push_back(name);
    for (std::size_t i = 0; i < children.size(); ++i) {
      add_names(children[i], name + "_" + std::to_string(i + 1), names);
    }
  }

  void take_outputs(const schema::GraphModule& module, Program& program) const {
    using Tag = schema::OutputSpec::Tag;
    const auto& specs = module.get_signature().get_output_specs();
    if (specs.size() != program.graph->outputs.size()) fail("its signature is not of its graph");
    const std::vector<std::string> names = result_names(module);
    const auto results = static_cast<std::size_t>(
        std::ranges::count(specs, Tag::USER_OUTPUT, &schema::OutputSpec::tag));
    std::size_t position = 0;
    for (const schema::OutputSpec& spec : specs) {
      Program::Output& output = program.outputs.emplace_back();
      if (spec.tag() == Tag::BUFFER_MUTATION) {
        output.buffer = buffer_named(program, spec.get_buffer_mutation().get_buffer_name());
        continue;
      }
      if (spec.tag() != Tag::USER_OUTPUT)
        fail("changes one of its inputs", "clone it in forward()");
      const schema::Argument& argument = spec.get_user_output().get_arg();
      std::string name = results == 1 ? "outputs" : "output_" + std::to_string(position + 1);
      if (names.size() == results) name = names[position];
      ++position;
      if (argument.tag() != schema::Argument::Tag::AS_TENSOR) continue;
      output.result = described(module.get_graph(), argument.get_as_tensor().get_name(), name);
    }
  }

  std::size_t buffer_named(Program& program, const std::string& name) const {
    const auto found = std::ranges::find(program.inputs, name, &ProgramInput::name);
    if (found == program.inputs.end()) fail("has no buffer " + quote(name, 200));
    found->is_written = true;
    return static_cast<std::size_t>(found - program.inputs.begin());
  }

  const ExportArchive& archive_;
  std::string file_;
  Payloads weights_, constants_;
  std::unordered_map<std::string, schema::RangeConstraint> ranges_;
};

}  // namespace

std::vector<ExportedTensor> Program::given() const {
  std::vector<ExportedTensor> tensors;
  for (const ProgramInput& each : inputs) {
    if (each.kind == ProgramInput::Kind::kGiven) tensors.push_back(each.given);
  }
  return tensors;
}

std::vector<ExportedTensor> Program::results() const {
  std::vector<ExportedTensor> tensors;
  for (const Output& each : outputs) {
    if (each.result) tensors.push_back(*each.result);
  }
  return tensors;
}

Program read_program(const ExportArchive& archive) {
  try {
    return ProgramReader(archive).read();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // the schema's classes do not check what they read
    const std::string text = error.what();
    throw UsageError(shown_path(archive.path()) + " is damaged: " + text.substr(0, text.find('\n')),
                     "export the network again, with PyTorch 2.11");
  }
}

}  // namespace troika
