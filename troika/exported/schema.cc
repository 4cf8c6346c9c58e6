#include <troika/base/nested_json.h>
#include <troika/exported/schema.h>

#include <stdexcept>

namespace troika::schema {

nlohmann::json parsed(std::string_view text) {
  constexpr int kDeepest = 200;
  try {
    return parse_nested_json(text, kDeepest);
  } catch (const DataError& error) {
    throw std::runtime_error(error.what());  // the caller names the record
  }
}

std::optional<at::ScalarType> type_of(ScalarType type) {
  switch (type) {
    case ScalarType::BYTE:
      return at::kByte;
    case ScalarType::CHAR:
      return at::kChar;
    case ScalarType::SHORT:
      return at::kShort;
    case ScalarType::INT:
      return at::kInt;
    case ScalarType::LONG:
      return at::kLong;
    case ScalarType::HALF:
      return at::kHalf;
    case ScalarType::FLOAT:
      return at::kFloat;
    case ScalarType::DOUBLE:
      return at::kDouble;
    case ScalarType::COMPLEXFLOAT:
      return at::kComplexFloat;
    case ScalarType::COMPLEXDOUBLE:
      return at::kComplexDouble;
    case ScalarType::BOOL:
      return at::kBool;
    case ScalarType::BFLOAT16:
      return at::kBFloat16;
    default:
      return std::nullopt;
  }
}

std::optional<at::MemoryFormat> memory_format_of(MemoryFormat format) {
  switch (format) {
    case MemoryFormat::ContiguousFormat:
      return at::MemoryFormat::Contiguous;
    case MemoryFormat::ChannelsLast:
      return at::MemoryFormat::ChannelsLast;
    case MemoryFormat::ChannelsLast3d:
      return at::MemoryFormat::ChannelsLast3d;
    case MemoryFormat::PreserveFormat:
      return at::MemoryFormat::Preserve;
    default:
      return std::nullopt;
  }
}

}  // namespace troika::schema
