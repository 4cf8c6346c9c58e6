// Expressions as functions of TorchScript, each compiled alone so that its errors name it.
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/jit.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/loss/expression.h>
#include <troika/nn/script_error.h>
#include <troika/param/shape_text.h>

#include <algorithm>
#include <array>
#include <set>

namespace troika {
namespace {

// What quantities may call.
constexpr const char* kDerivative = R"(
def derivative(of: Tensor, by: Tensor) -> Tensor:
    assert of.numel() == by.size(0), (
        "derivative() is of one number a sample, not of " + str(of.size()) + " for " +
        str(by.size(0)) + " samples: outputs[:, 0] is the first")
    assert by.requires_grad, "derivative() is by an input of floating-point numbers"
    if not of.requires_grad:
        return torch.zeros_like(by)
    found = torch.autograd.grad([of.sum()], [by], create_graph=True, allow_unused=True)[0]
    if found is None:
        return torch.zeros_like(by)
    return found
)";

// What the loss may call.
constexpr const char* kSquaredError = R"(
def squared_error(value: Tensor, target: Tensor) -> Tensor:
    assert value.size() == target.size(), (
        "squared_error() takes two tensors of one shape, not " + str(value.size()) + " and " +
        str(target.size()))
    missing = target.isnan()
    errors = torch.where(missing, torch.zeros_like(value), value - target).square()
    if errors.dim() == 1:
        return errors
    return errors.flatten(1).mean(1)
)";

// Words that no tensor can have as its name.
constexpr std::array<std::string_view, 39> kTaken = {"False",
                                                     "None",
                                                     "True",
                                                     "and",
                                                     "as",
                                                     "assert",
                                                     "async",
                                                     "await",
                                                     "break",
                                                     "class",
                                                     "continue",
                                                     "def",
                                                     "del",
                                                     "elif",
                                                     "else",
                                                     "except",
                                                     "finally",
                                                     "for",
                                                     "from",
                                                     "global",
                                                     "if",
                                                     "import",
                                                     "in",
                                                     "is",
                                                     "lambda",
                                                     "nonlocal",
                                                     "not",
                                                     "or",
                                                     "pass",
                                                     "raise",
                                                     "return",
                                                     "try",
                                                     "while",
                                                     "with",
                                                     "yield",
                                                     "torch",
                                                     "derivative",
                                                     "squared_error",
                                                     "sample_weights"};

bool is_word(const std::string& name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto is_part = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && is_letter(name.front()) && std::ranges::all_of(name, is_part) &&
         std::ranges::count(kTaken, name) == 0;
}

void check_names(const std::vector<std::string>& names) {
  std::set<std::string> known;
  for (const std::string& name : names) {
    if (!is_word(name)) {
      throw UsageError(
          quote(name, 200) + " is no name that an expression can use",
          "names are letters, digits and _, and no words of Python; torch, derivative, "
          "squared_error and sample_weights are taken");
    }
    if (known.insert(name).second) continue;
    throw UsageError("two tensors are called " + quote(name, 200) + " in the expressions",
                     "inputs, outputs, quantities and targets have names of their own");
  }
}

void append(std::vector<std::string>& to, const std::vector<std::string>& names) {
  to.insert(to.end(), names.begin(), names.end());
}

// Returns the first line of a compiler's message that says something, without its pointer.
std::string compiler_error(const std::exception& error, const std::string& expression) {
  std::string text = script_error(error);
  if (text.empty()) {
    const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
    text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
    text.erase(0, text.find_first_not_of(" \n"));
    text.resize(std::min(text.size(), text.find('\n')));
  }
  while (text.ends_with(':') || text.ends_with('.')) text.pop_back();
  if (text.ends_with(" here")) text.resize(text.size() - 5);
  return text + " in " + quote(expression, 200);
}

// Adds the second argument of each call of derivative() in a block of a graph.
void add_variables(torch::jit::Block* block, std::vector<torch::jit::Value*>& variables) {
  for (torch::jit::Node* node : block->nodes()) {
    for (torch::jit::Block* inner : node->blocks()) add_variables(inner, variables);
    if (node->kind() != c10::prim::CallFunction) continue;
    const auto type = node->input(0)->type()->cast<c10::FunctionType>();
    if (type != nullptr && type->function()->name() == "derivative") {
      variables.push_back(node->input(2));
    }
  }
}

}  // namespace

// A function of named tensors.
class CompiledExpression {
 public:
  CompiledExpression(std::string place, const std::string& expression,
                     std::vector<std::string> parameters, const char* prelude)
      : place_(std::move(place)), parameters_(std::move(parameters)) {
    const std::string source = std::string(prelude) + "\ndef expression(" +
                               join(parameters_, ", ") + "):\n    return (" + expression + ")\n";
    try {
      unit_ = torch::jit::compile(source);
      function_ = &unit_->get_function("expression");
    } catch (const std::exception& error) {
      throw UsageError(place_ + ": " + compiler_error(error, expression),
                       "expressions are those of Python and torch over " + join(parameters_, ", "));
    }
    const auto& returns = function_->getSchema().returns();
    if (returns.size() == 1 && returns[0].type()->isSubtypeOf(*c10::TensorType::get())) return;
    throw UsageError(place_ + ": " + quote(expression, 200) + " gives no tensor");
  }

  // Throws UsageError where it calls derivative() by anything but one of its first `inputs`
  // parameters: autograd would find that nothing depends on a slice that has just been cut.
  void check_variables(std::size_t inputs) const {
    const std::shared_ptr<torch::jit::Graph> graph =
        torch::jit::toGraphFunction(*function_).graph();
    std::vector<torch::jit::Value*> variables;
    add_variables(graph->block(), variables);
    const auto known = graph->inputs().slice(0, inputs);
    for (const torch::jit::Value* each : variables) {
      if (std::ranges::find(known, each) != known.end()) continue;
      throw UsageError(place_ + ": derivative() is by an input as a whole",
                       "derivative(u, x)[:, 0] is by the first number of the input x");
    }
  }

  // Takes the values of the first parameters.
  [[nodiscard]] at::Tensor operator()(const Tensors& values) const {
    std::vector<c10::IValue> stack(values.begin(), values.end());
    const torch::jit::GraphOptimizerEnabledGuard as_written(false);
    try {
      return (*function_)(std::move(stack)).toTensor();
    } catch (const std::exception& error) {
      // Without the words of Python for assertions, which are ours, and for operators that throw.
      std::string text = script_error(error);
      for (const std::string_view kind : {"AssertionError: ", "RuntimeError: "}) {
        const std::size_t at = text.find(kind);
        if (at != std::string::npos) text.erase(0, at + kind.size());
      }
      throw UsageError(place_ + ": " + text);
    }
  }

  [[nodiscard]] const std::string& place() const { return place_; }
  [[nodiscard]] const std::vector<std::string>& parameters() const { return parameters_; }

 private:
  std::string place_;  // "quantities.forces.value"
  std::vector<std::string> parameters_;
  std::shared_ptr<torch::jit::CompilationUnit> unit_;
  torch::jit::Function* function_ = nullptr;
};

struct Expressions::Code {
  std::vector<Quantity> quantities;
  std::vector<CompiledExpression> values;  // of the quantities
  std::optional<CompiledExpression> loss;
};

Expressions::Expressions(const ExpressionOptions& options, const std::vector<std::string>& inputs,
                         const std::vector<std::string>& outputs,
                         const std::vector<std::string>& targets) {
  std::vector<std::string> names = inputs;
  append(names, outputs);
  std::vector<std::string> all = names;
  for (const Quantity& each : options.quantities) all.push_back(each.name);
  append(all, targets);
  check_names(all);
  auto code = std::make_unique<Code>();
  code->quantities = options.quantities;
  for (const Quantity& each : options.quantities) {
    code->values.emplace_back("quantities." + each.name + ".value", each.value, names, kDerivative);
    code->values.back().check_variables(inputs.size());
    names.push_back(each.name);
  }
  append(names, targets);
  code->loss.emplace("value", options.value, names, kSquaredError);
  code_ = std::move(code);
}

Expressions::~Expressions() = default;

Tensors Expressions::quantities(const Tensors& inputs, const Tensors& outputs) const {
  Tensors values = inputs, found;
  values.insert(values.end(), outputs.begin(), outputs.end());
  const std::int64_t samples = inputs.front().size(0);
  for (std::size_t i = 0; i < code_->values.size(); ++i) {
    at::Tensor value = code_->values[i](values);
    std::vector<std::int64_t> expected = code_->quantities[i].shape;
    expected.insert(expected.begin(), samples);
    if (value.sizes() != at::IntArrayRef(expected)) {
      throw UsageError(code_->values[i].place() + " gives " + shape_text(value.sizes()) + " for " +
                           plural(samples, "sample") + ", not " + shape_text(expected),
                       "quantities." + code_->quantities[i].name + ".shape is that of one sample");
    }
    values.push_back(value);
    found.push_back(std::move(value));
  }
  return found;
}

at::Tensor Expressions::loss(const TensorMap& known) const {
  Tensors values;
  for (const std::string& name : code_->loss->parameters()) values.push_back(known.at(name));
  const std::int64_t samples = values.front().size(0);
  at::Tensor loss = (*code_->loss)(values);
  if (!loss.is_floating_point()) {
    throw UsageError(
        std::string("value gives numbers of type ") + c10::toString(loss.scalar_type()),
        "a loss is of floating-point numbers");
  }
  if (loss.dim() == 1 && loss.size(0) == samples) return loss;
  throw UsageError("value gives " + shape_text(loss.sizes()) + " for " + plural(samples, "sample") +
                       ", not one number for each",
                   "the run takes the mean over the samples; outputs[:, 0] takes one number of "
                   "each, and .mean(1) the mean over a sample's");
}

}  // namespace troika
