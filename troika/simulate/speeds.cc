#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/simulate/speeds.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace troika {
namespace {

constexpr double kLeast = 1e-6, kMost = 1e6;  // of a speed
constexpr double kMostSigma = 5;

struct RuleName {
  std::string_view name;
  SpeedRule::Kind kind;
  std::size_t numbers;  // 0: any
};
constexpr std::array<RuleName, 4> kRules = {{{"constant", SpeedRule::Kind::kConstant, 1},
                                             {"uniform", SpeedRule::Kind::kUniform, 2},
                                             {"lognormal", SpeedRule::Kind::kLognormal, 2},
                                             {"list", SpeedRule::Kind::kList, 0}}};

[[noreturn]] void fail_speeds(std::string_view text, const std::string& why) {
  throw UsageError("--speeds: " + quote(text) + " " + why,
                   "write constant(1), uniform(0.5, 1), lognormal(1, 0.5), or list(1, 1, 0.2)");
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::optional<double> number_of(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) {
    return std::nullopt;
  }
  return number;
}

bool is_speed(double number) {
  return number >= kLeast && number <= kMost;
}

void check_numbers(std::string_view text, const SpeedRule& rule) {
  const std::vector<double>& numbers = rule.numbers;
  const bool has_sigma = rule.kind == SpeedRule::Kind::kLognormal;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (has_sigma && i == 1) continue;
    if (!is_speed(numbers[i]))
      fail_speeds(text, "has a speed that is not from 0.000001 to 1000000");
  }
  if (has_sigma && (numbers[1] < 0 || numbers[1] > kMostSigma)) {
    fail_speeds(text, "has a sigma that is not from 0 to 5");
  }
  if (rule.kind == SpeedRule::Kind::kUniform && numbers[0] > numbers[1]) {
    fail_speeds(text, "ends below its beginning");
  }
}

}  // namespace

SpeedRule parse_speeds(std::string_view text) {
  const std::string_view all = trimmed(text);
  const std::size_t open = all.find('(');
  if (open == std::string_view::npos || all.back() != ')')
    fail_speeds(text, "is no rule for speeds");
  const std::string_view name = trimmed(all.substr(0, open));
  std::string_view rest = all.substr(open + 1, all.size() - open - 2);
  for (const RuleName& each : kRules) {
    if (each.name != name) continue;
    SpeedRule rule{each.kind, {}};
    for (bool more = true; more;) {
      const std::size_t comma = rest.find(',');
      more = comma != std::string_view::npos;
      const auto number = number_of(trimmed(rest.substr(0, comma)));
      if (!number) fail_speeds(text, "has something that is no number");
      rule.numbers.push_back(*number);
      if (more) rest.remove_prefix(comma + 1);
    }
    if (each.numbers != 0 && rule.numbers.size() != each.numbers) {
      fail_speeds(text, "has " + plural(std::ssize(rule.numbers), "number") + ", and " +
                            std::string(name) + " takes " + std::to_string(each.numbers));
    }
    check_numbers(text, rule);
    return rule;
  }
  fail_speeds(text, "is no rule for speeds");
}

std::vector<double> draw_speeds(const SpeedRule& rule, int workers, std::uint64_t seed) {
  const std::vector<double>& numbers = rule.numbers;
  if (rule.kind == SpeedRule::Kind::kList && std::ssize(numbers) != workers) {
    throw UsageError("--speeds: a list of " + plural(std::ssize(numbers), "speed") + " for " +
                         plural(workers, "worker"),
                     "write one for each worker");
  }
  const RandomStream random(stream_key(seed, "speeds"));
  std::vector<double> speeds;
  for (int worker = 0; worker < workers; ++worker) {
    const auto index = static_cast<std::uint64_t>(worker);
    switch (rule.kind) {
      case SpeedRule::Kind::kConstant:
        speeds.push_back(numbers[0]);
        break;
      case SpeedRule::Kind::kUniform:
        speeds.push_back(numbers[0] + (numbers[1] - numbers[0]) * random.uniform(index));
        break;
      case SpeedRule::Kind::kLognormal:
        speeds.push_back(numbers[0] * std::exp(numbers[1] * random.normal(index)));
        break;
      case SpeedRule::Kind::kList:
        speeds.push_back(numbers[index]);
        break;
    }
  }
  return speeds;
}

}  // namespace troika
