#include <troika/base/text.h>
#include <troika/data/sources/table/column_contents.h>
#include <troika/param/shape_text.h>

namespace troika {
namespace {

// A table may have thousands of columns; a line names this many.
constexpr std::size_t kMostNamed = 20;

std::string contents_of(const PlannedColumn& column) {
  std::string text = column.column.name;
  if (column.options.as == ColumnUse::kCategory && !column.words.empty()) {
    text += " (" + plural(std::ssize(column.words), "word") + ")";
  } else if (column.classes > 0) {
    text += " (" + std::to_string(column.classes) + (column.classes == 1 ? " class)" : " classes)");
  } else if (column.options.as == ColumnUse::kTensor && column.width > 1) {
    text += " (" + std::to_string(column.width) + " numbers)";
  }
  return text;
}

}  // namespace

std::vector<std::string> contents_of(const TablePlan& plan) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    std::vector<std::string> names;
    std::size_t more = 0;
    for (const PlannedColumn& each : plan.columns) {
      if (each.tensor != i) continue;
      if (names.size() < kMostNamed) {
        names.push_back(contents_of(each));
      } else {
        ++more;
      }
    }
    if (names.empty()) continue;
    const TensorSpec& tensor = plan.tensors[i];
    lines.push_back(tensor.name + " " + shape_text(tensor.shape) + ": " + join(names, ", ") +
                    (more > 0 ? " and " + std::to_string(more) + " more" : ""));
  }
  return lines;
}

}  // namespace troika
