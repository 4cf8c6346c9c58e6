#include <arrow/extension/fixed_shape_tensor.h>
#include <arrow/extension_type.h>
#include <troika/data/arrow/plain_array.h>

#include <algorithm>

namespace troika::arrow_plugin {
namespace {

bool is_permuted(const arrow::ExtensionType& type) {
  if (type.extension_name() != "arrow.fixed_shape_tensor") return false;
  const auto* tensor = dynamic_cast<const arrow::extension::FixedShapeTensorType*>(&type);
  return tensor != nullptr && !std::ranges::is_sorted(tensor->permutation());
}

// Appends the value of each run as often as the run is long.
arrow::Result<std::shared_ptr<arrow::Array>> decode_runs(const arrow::RunEndEncodedArray& array) {
  ARROW_ASSIGN_OR_RAISE(const auto ends, array.LogicalRunEnds(arrow::default_memory_pool()));
  const std::shared_ptr<arrow::Array> values = array.LogicalValues();
  ARROW_ASSIGN_OR_RAISE(const auto builder, arrow::MakeBuilder(values->type()));
  std::int64_t begin = 0;
  for (std::int64_t run = 0; run < values->length(); ++run) {
    ARROW_ASSIGN_OR_RAISE(const auto end, ends->GetScalar(run));
    ARROW_ASSIGN_OR_RAISE(const auto whole, end->CastTo(arrow::int64()));
    const std::int64_t next = static_cast<const arrow::Int64Scalar&>(*whole).value;
    if (next < begin || next > array.length()) {
      return arrow::Status::Invalid("the runs of a column are damaged");
    }
    ARROW_ASSIGN_OR_RAISE(const auto value, values->GetScalar(run));
    ARROW_RETURN_NOT_OK(builder->AppendScalar(*value, next - begin));
    begin = next;
  }
  if (begin != array.length()) return arrow::Status::Invalid("the runs of a column are damaged");
  return builder->Finish();
}

}  // namespace

const arrow::DataType* plain_type(const arrow::DataType& type) {
  if (type.id() == arrow::Type::EXTENSION) {
    const auto& extension = static_cast<const arrow::ExtensionType&>(type);
    return is_permuted(extension) ? nullptr : plain_type(*extension.storage_type());
  }
  if (type.id() == arrow::Type::RUN_END_ENCODED) {
    return plain_type(*static_cast<const arrow::RunEndEncodedType&>(type).value_type());
  }
  return &type;
}

bool is_wrapped(const arrow::DataType& type) {
  return type.id() == arrow::Type::EXTENSION || type.id() == arrow::Type::RUN_END_ENCODED;
}

arrow::Result<std::shared_ptr<arrow::Array>> plain_array(const arrow::Array& array) {
  std::shared_ptr<arrow::Array> plain;
  if (array.type_id() == arrow::Type::EXTENSION) {
    plain = static_cast<const arrow::ExtensionArray&>(array).storage();
  } else {
    ARROW_ASSIGN_OR_RAISE(plain, decode_runs(static_cast<const arrow::RunEndEncodedArray&>(array)));
  }
  return is_wrapped(*plain->type()) ? plain_array(*plain) : plain;
}

}  // namespace troika::arrow_plugin
