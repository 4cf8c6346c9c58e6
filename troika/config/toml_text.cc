#include <troika/config/toml_text.h>

#include <charconv>
#include <cmath>
#include <limits>

namespace troika {
namespace {

std::string shortest(double value, std::chars_format format) {
  char buffer[400];  // the longest double in fixed notation has 327 characters
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value, format);
  return {buffer, end};
}

// "1e-05" -> "1e-5"
std::string without_padding(std::string text) {
  const std::size_t sign = text.find('e') + 1;
  if (sign + 1 < text.size() && text[sign + 1] == '0') text.erase(sign + 1, 1);
  return text;
}

std::string toml_seconds(double value) {
  std::string text = toml_number(value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

template <class T, class Writer>
std::string toml_list(const T& values, Writer writer) {
  std::string text = "[";
  for (const auto& value : values) {
    if (text.size() > 1) text += ", ";
    text += writer(value);
  }
  return text + "]";
}

struct LiteralWriter {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return toml_number(value); }
  std::string operator()(const std::string& value) const { return toml_string(value); }
};

std::string toml_literal(const Literal& value) {
  return std::visit(LiteralWriter(), value);
}

struct ValueWriter {
  const void* options;

  std::string operator()(const IntegerSpec& spec) const {
    return std::to_string(spec.at.read(options));
  }
  std::string operator()(const AutoIntegerSpec& spec) const {
    const auto& value = spec.at.read(options);
    if (!value) return "\"auto\"";
    const bool is_largest = *value == std::numeric_limits<std::int64_t>::max();
    return is_largest && !spec.largest.empty() ? toml_string(spec.largest) : std::to_string(*value);
  }
  std::string operator()(const NumberSpec& spec) const {
    return toml_number(spec.at.read(options));
  }
  std::string operator()(const SecondsSpec& spec) const {
    return toml_seconds(spec.at.read(options));
  }
  std::string operator()(const BoolSpec& spec) const {
    return spec.at.read(options) ? "true" : "false";
  }
  std::string operator()(const TextSpec& spec) const { return toml_string(spec.at.read(options)); }
  std::string operator()(const ChoiceSpec& spec) const {
    return toml_string(spec.names[static_cast<std::size_t>(spec.read(options))]);
  }
  std::string operator()(const WordSpec& spec) const { return toml_string(spec.at.read(options)); }
  std::string operator()(const KindSpec& spec) const {
    return toml_string(spec.read(options)->name());
  }
  std::string operator()(const AutoNumberSpec& spec) const {
    const auto& value = spec.at.read(options);
    return value ? toml_number(*value) : "\"auto\"";
  }
  std::string operator()(const TablesSpec& spec) const {
    const std::vector<Key> keys = spec.keys();
    const std::size_t size = spec.size(options);
    std::string text = !spec.named() ? "[" : (size == 0 ? "{" : "{ ");
    for (std::size_t i = 0; i < size; ++i) {
      if (i > 0) text += ", ";
      if (spec.named()) text += toml_string(spec.name(options, i)) + " = ";
      text += "{ ";
      for (const Key& key : keys) {
        if (&key != keys.data()) text += ", ";
        text += std::string(key.name) + " = " + toml_value(key, spec.read(options, i));
      }
      text += " }";
    }
    return text + (!spec.named() ? "]" : (size == 0 ? "}" : " }"));
  }
  std::string operator()(const OptionsSpec& spec) const {
    const Component* component = spec.component(options);
    if (component == nullptr || component->keys().empty()) return "{}";
    std::string text;
    for (const Key& key : component->keys()) {
      text += text.empty() ? "{ " : ", ";
      text += std::string(key.name) + " = " + toml_value(key, spec.read(options));
    }
    return text + " }";
  }
  std::string operator()(const IntegerListSpec& spec) const {
    return toml_list(spec.at.read(options),
                     [](std::int64_t value) { return std::to_string(value); });
  }
  std::string operator()(const NumberListSpec& spec) const {
    return toml_list(spec.at.read(options), toml_number);
  }
  std::string operator()(const NumberPairSpec& spec) const {
    return toml_list(spec.at.read(options), toml_number);
  }
  std::string operator()(const ConditionListSpec& spec) const {
    return toml_list(spec.at.read(options), [](const Condition& condition) {
      const std::string values = toml_list(condition.values, toml_literal);
      return "[" + toml_string(condition.name) + ", " + toml_string(condition.relation) + ", " +
             (condition.is_list ? values : toml_literal(condition.values.front())) + "]";
    });
  }
  std::string operator()(const TextListSpec& spec) const {
    return toml_list(spec.at.read(options), toml_string);
  }
};

}  // namespace

std::string toml_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const std::string scientific = without_padding(shortest(value, std::chars_format::scientific));
  std::string fixed = shortest(value, std::chars_format::fixed);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  const double size = std::abs(value);
  const bool everyday = value == 0 || (size >= 1 && size < 1e15);
  return everyday || fixed.size() <= scientific.size() ? fixed : scientific;
}

std::string toml_string(std::string_view text) {
  static constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      result += "\\u00";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 0xF];
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string toml_value(const Key& key, const void* options) {
  return std::visit(ValueWriter{options}, key.spec);
}

std::string toml_value(const SchemaKey& key, const void* document) {
  return toml_value(*key.key, options_at(key, document));
}

std::string default_value(const Schema& schema, const SchemaKey& key) {
  if (key.kind == nullptr) return toml_value(key, schema.make_default().get());
  return toml_value(*key.key, key.kind->defaults().data());
}

}  // namespace troika
