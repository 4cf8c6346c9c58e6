#include <troika/observe/jsonl_sink.h>

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

class LineWriter {
 public:
  void integer(std::string_view key, std::int64_t value) { text_after(key, std::to_string(value)); }
  void number(std::string_view key, double value) { text_after(key, digits(value)); }
  [[nodiscard]] std::string finish() { return line_ + "}\n"; }

 private:
  // std::to_chars, because printf would follow the program's locale.
  static std::string digits(double value) {
    if (!std::isfinite(value)) return "null";
    std::array<char, 32> buffer;
    const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                      std::chars_format::general, 17);
    std::string text(buffer.data(), result.ptr);
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    return text;
  }

  void text_after(std::string_view key, const std::string& value) {
    line_ += line_.empty() ? "{" : ", ";
    line_ += nlohmann::json(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    line_ += ": " + value;
  }

  std::string line_;
};

}  // namespace

std::string to_json_line(const StepMetrics& metrics) {
  LineWriter line;
  line.integer("step", metrics.step);
  line.number("loss", metrics.loss);
  line.number("grad_norm", metrics.grad_norm);
  line.number("learning_rate", metrics.learning_rate);
  line.integer("tokens", metrics.tokens);
  line.number("tokens_per_second", metrics.tokens_per_second);
  line.number("step_seconds", metrics.step_seconds);
  line.number("data_wait_seconds", metrics.data_wait_seconds);
  if (metrics.evaluation) {
    line.number("held_out_loss", metrics.evaluation->held_out_loss);
    if (const auto bits = metrics.evaluation->held_out_bits_per_byte) {
      line.number("held_out_bits_per_byte", *bits);
    }
    for (const NamedValue& each : metrics.evaluation->metrics) {
      line.number("held_out_" + each.name, each.value);
    }
  }
  for (const NamedValue& extra : metrics.extras) line.number(extra.name, extra.value);
  return line.finish();
}

}  // namespace troika
