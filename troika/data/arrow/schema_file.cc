#include <arrow/extension_type.h>
#include <troika/data/arrow/convert.h>
#include <troika/data/arrow/files.h>

#include <algorithm>
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

}  // namespace

SchemaFile::SchemaFile(std::shared_ptr<arrow::Schema> schema) : schema_(std::move(schema)) {
  int leaf = 0;
  for (int i = 0; i < schema_->num_fields(); ++i) {
    const arrow::Field& field = *schema_->field(i);
    places_.push_back({field.name(), i, {}, field.type(), leaf, leaves_of(*field.type())});
    leaf += places_.back().leaves;
  }
  for (int i = 0; i < schema_->num_fields(); ++i) add_inside(FieldPlace(place(i)));
  for (const FieldPlace& each : places_) type_names_.push_back(each.type->ToString());
}

// Fields of structs that cannot be read as a whole are columns too, behind those of the schema. A
// column that is called like one goes before it.
void SchemaFile::add_inside(const FieldPlace& of) {
  if (of.type->id() != arrow::Type::STRUCT || value_type_of(*of.type) != ValueType::kOther) return;
  int leaf = of.first_leaf;
  for (const auto& field : of.type->fields()) {
    FieldPlace inner{of.name + "." + field->name(), of.field, of.inside, field->type(), leaf,
                     leaves_of(*field->type())};
    leaf += inner.leaves;
    inner.inside.push_back(field->name());
    if (std::ranges::count(places_, inner.name, &FieldPlace::name) > 0) continue;
    places_.push_back(inner);
    add_inside(inner);
  }
}

Column SchemaFile::column(std::int64_t index) const {
  const FieldPlace& which = place(index);
  return {which.name, value_type_of(*which.type), type_names_[static_cast<std::size_t>(index)],
          width_of(*which.type)};
}

arrow::Result<std::shared_ptr<arrow::Array>> SchemaFile::find(const arrow::RecordBatch& batch,
                                                              std::int64_t column) const {
  const FieldPlace& which = place(column);
  const std::string& name = schema_->field(which.field)->name();
  std::shared_ptr<arrow::Array> found = batch.GetColumnByName(name);
  if (found == nullptr) return arrow::Status::IOError("two columns are called ", name);
  for (const std::string& each : which.inside) {
    const int index = static_cast<const arrow::StructType&>(*found->type()).GetFieldIndex(each);
    if (index < 0) return arrow::Status::IOError("two fields of ", name, " are called ", each);
    ARROW_ASSIGN_OR_RAISE(found,
                          static_cast<const arrow::StructArray&>(*found).GetFlattenedField(index));
  }
  return found;
}

}  // namespace troika::arrow_plugin
