#include <troika/exported/schema.h>

#include <stdexcept>

namespace troika::schema {

nlohmann::json parsed(std::string_view text) {
  constexpr int kDeepest = 200;
  const auto check_depth = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kDeepest) throw std::runtime_error("it is nested too deeply");
    return true;
  };
  return nlohmann::json::parse(text, check_depth);
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
