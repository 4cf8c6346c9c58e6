#include <troika/observe/jsonl_sink.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

namespace troika {
namespace {

class LineWriter {
 public:
  void integer(std::string_view key, std::int64_t value) { text_after(key, std::to_string(value)); }
  void number(std::string_view key, double value) { text_after(key, digits(value)); }
  void counts(std::string_view key, const ValueCounts& counts) {
    std::string object;
    for (const auto& [value, count] : counts) {
      object += object.empty() ? "\"" : ", \"";
      object.append(std::to_string(value)).append("\": ").append(std::to_string(count));
    }
    text_after(key, "{" + object + "}");
  }
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

// The step of a line, as LineWriter begins it; nothing where it is no such line.
std::optional<std::int64_t> step_of(std::string_view line) {
  constexpr std::string_view kBegin = "{\"step\": ";
  if (!line.starts_with(kBegin)) return std::nullopt;
  std::int64_t step = 0;
  const auto result = std::from_chars(line.data() + kBegin.size(), line.data() + line.size(), step);
  if (result.ec != std::errc()) return std::nullopt;
  return step;
}

}  // namespace

void cut_behind_step(const std::filesystem::path& path, std::int64_t step) {
  std::ifstream file(path);
  if (!file) return;
  std::uintmax_t kept = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto of_line = step_of(line);
    if (!of_line || *of_line > step) break;
    kept += line.size() + 1;
  }
  std::error_code error;
  std::filesystem::resize_file(path, kept, error);
  if (error) throw_storage_error("truncate", path, error.value());
}

std::string last_line_of(const std::filesystem::path& path) {
  constexpr std::streamoff kTail = 1 << 20;  // longer than a line
  std::ifstream file(path, std::ios::ate);
  if (!file) return "";
  file.seekg(std::max<std::streamoff>(0, file.tellg() - kTail));
  std::string last;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    if (step_of(line)) last = line;
  }
  return last;
}

std::int64_t last_step_of(const std::filesystem::path& path) {
  return step_of(last_line_of(path)).value_or(0);
}

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
  for (const NamedCounts& each : metrics.counts) line.counts(each.name, each.counts);
  return line.finish();
}

}  // namespace troika
