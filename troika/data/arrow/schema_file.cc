// The columns of a file from its Arrow schema, fields inside of structs included.
#include <arrow/array.h>
#include <arrow/builder.h>
#include <arrow/extension_type.h>
#include <troika/data/arrow/convert.h>
#include <troika/data/arrow/files.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

namespace troika::arrow_plugin {
namespace {

// The columns of Parquet that hold a field: one, but for nested types.
int leaves_of(const arrow::DataType& type) {
  if (type.id() == arrow::Type::EXTENSION) {
    return leaves_of(*static_cast<const arrow::ExtensionType&>(type).storage_type());
  }
  if (type.num_fields() == 0) return 1;
  int leaves = 0;
  for (const auto& field : type.fields()) leaves += leaves_of(*field->type());
  return leaves;
}

bool has_digits(const arrow::DataType& type) {
  return type.id() == arrow::Type::UINT64 || arrow::is_decimal(type.id());
}

template <class Array>
arrow::Result<std::shared_ptr<arrow::Array>> text_of(const arrow::Array& numbers) {
  arrow::StringBuilder text;
  for (std::int64_t i = 0; i < numbers.length(); ++i) {
    if (numbers.IsNull(i)) {
      ARROW_RETURN_NOT_OK(text.AppendNull());
      continue;
    }
    const auto& array = static_cast<const Array&>(numbers);
    if constexpr (std::is_same_v<Array, arrow::UInt64Array>) {
      ARROW_RETURN_NOT_OK(text.Append(std::to_string(array.Value(i))));
    } else {
      ARROW_RETURN_NOT_OK(text.Append(array.FormatValue(i)));
    }
  }
  return text.Finish();
}

arrow::Result<std::shared_ptr<arrow::Array>> digits_of(const arrow::Array& numbers) {
  switch (numbers.type_id()) {
    case arrow::Type::DECIMAL32:
      return text_of<arrow::Decimal32Array>(numbers);
    case arrow::Type::DECIMAL64:
      return text_of<arrow::Decimal64Array>(numbers);
    case arrow::Type::DECIMAL128:
      return text_of<arrow::Decimal128Array>(numbers);
    case arrow::Type::DECIMAL256:
      return text_of<arrow::Decimal256Array>(numbers);
    default:
      return text_of<arrow::UInt64Array>(numbers);
  }
}

}  // namespace

SchemaFile::SchemaFile(std::shared_ptr<arrow::Schema> schema) : schema_(std::move(schema)) {
  int leaf = 0;
  for (int i = 0; i < schema_->num_fields(); ++i) {
    const arrow::Field& field = *schema_->field(i);
    paths_.push_back({field.name(), i, {}, field.type(), leaf, leaves_of(*field.type())});
    leaf += paths_.back().leaves;
  }
  for (int i = 0; i < schema_->num_fields(); ++i) add_inside(FieldPath(path_of(i)));
  for (const FieldPath& each : paths_) type_names_.push_back(each.type->ToString());
}

// Fields of structs that cannot be read as a whole are columns too, behind those of the schema. A
// column that is called like one goes before it.
void SchemaFile::add_inside(const FieldPath& of) {
  if (of.type->id() != arrow::Type::STRUCT || value_type_of(*of.type) != ValueType::kOther) return;
  int leaf = of.first_leaf;
  for (const auto& field : of.type->fields()) {
    FieldPath inner{of.name + "." + field->name(), of.field, of.inside, field->type(), leaf,
                    leaves_of(*field->type())};
    leaf += inner.leaves;
    inner.inside.push_back(field->name());
    if (std::ranges::count(paths_, inner.name, &FieldPath::name) > 0) continue;
    paths_.push_back(inner);
    add_inside(inner);
  }
}

Column SchemaFile::column(std::int64_t index) const {
  const FieldPath& which = path_of(index);
  return {which.name, which.as_digits ? ValueType::kText : value_type_of(*which.type),
          type_names_[static_cast<std::size_t>(index)], width_of(*which.type)};
}

void SchemaFile::show_digits(std::span<const std::string> columns) {
  for (FieldPath& each : paths_) {
    each.as_digits = has_digits(*each.type) && std::ranges::count(columns, each.name) > 0;
  }
}

arrow::Result<std::shared_ptr<arrow::Array>> SchemaFile::find(const arrow::RecordBatch& batch,
                                                              std::int64_t column) const {
  const FieldPath& which = path_of(column);
  const std::string& name = schema_->field(which.field)->name();
  std::shared_ptr<arrow::Array> found = batch.GetColumnByName(name);
  if (found == nullptr) return arrow::Status::IOError("two columns are called ", name);
  for (const std::string& each : which.inside) {
    const int index = static_cast<const arrow::StructType&>(*found->type()).GetFieldIndex(each);
    if (index < 0) return arrow::Status::IOError("two fields of ", name, " are called ", each);
    ARROW_ASSIGN_OR_RAISE(found,
                          static_cast<const arrow::StructArray&>(*found).GetFlattenedField(index));
  }
  if (which.as_digits) return digits_of(*found);
  return found;
}

}  // namespace troika::arrow_plugin
