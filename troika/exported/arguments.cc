#include <ATen/ATen.h>
#include <troika/base/text.h>
#include <troika/exported/arguments.h>

namespace troika {
namespace {

c10::TypeKind kind_of(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType()->kind() : type->kind();
}

}  // namespace

std::string name_of_value(const schema::Argument& argument) {
  using Tag = schema::Argument::Tag;
  switch (argument.tag()) {
    case Tag::AS_TENSOR:
      return argument.get_as_tensor().get_name();
    case Tag::AS_SYM_INT: {
      const auto& number = argument.get_as_sym_int();
      return number.tag() == schema::SymIntArgument::Tag::AS_NAME ? number.get_as_name() : "";
    }
    case Tag::AS_SYM_FLOAT: {
      const auto& number = argument.get_as_sym_float();
      return number.tag() == schema::SymFloatArgument::Tag::AS_NAME ? number.get_as_name() : "";
    }
    case Tag::AS_SYM_BOOL: {
      const auto& number = argument.get_as_sym_bool();
      return number.tag() == schema::SymBoolArgument::Tag::AS_NAME ? number.get_as_name() : "";
    }
    default:
      return "";
  }
}

c10::TypeKind kind_of_argument(const c10::Argument& argument) {
  return kind_of(argument.type());
}

Operand wrapped(const Operand& number) {
  const auto type = number.literal.isDouble() ? at::kDouble
                    : number.literal.isInt()  ? at::kLong
                                              : at::kBool;
  Operand operand;
  at::Tensor tensor = at::scalar_tensor(number.literal.toScalar(), type);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  operand.literal = std::move(tensor);
  return operand;
}

c10::IValue list_of_type(c10::IValue value, const c10::Argument& argument) {
  const auto list = argument.type()->cast<c10::ListType>();
  if (list == nullptr || !value.isIntList() || !value.toIntVector().empty()) return value;
  switch (list->getElementType()->kind()) {
    case c10::TypeKind::TensorType:
      return c10::List<at::Tensor>();
    case c10::TypeKind::FloatType:
      return c10::List<double>();
    default:
      return value;
  }
}

std::string fault_of_enumeration(const Operand& operand, const c10::Argument& argument) {
  const bool is_literal = operand.kind == OperandKind::kLiteral;
  if (is_literal && operand.literal.isNone()) return "";
  const auto number = is_literal && operand.literal.isInt() ? operand.literal.toInt() : -1;
  const auto last = static_cast<std::int64_t>(at::MemoryFormat::ChannelsLast3d);
  switch (kind_of(argument.real_type())) {
    case c10::TypeKind::ScalarTypeType:
      if (operand.kind == OperandKind::kType) return "";
      return "has no type as " + quote(argument.name());
    case c10::TypeKind::LayoutType:
      if (number == static_cast<std::int64_t>(at::kStrided)) return "";
      return "has no dense layout as " + quote(argument.name());
    case c10::TypeKind::MemoryFormatType:
      if (number >= 0 && number <= last) return "";
      return "has no format of memory as " + quote(argument.name());
    default:
      return "";
  }
}

}  // namespace troika
