#include <troika/base/text.h>
#include <troika/cli/verify_report.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

namespace troika {
namespace {

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1e", value);
  return value == 0 ? "0" : text.data();
}

std::string word_of(const TrialResult& result) {
  if (!result.error.empty()) return "FAILED";
  if (!result.agrees()) return "DIFFERS";
  return result.with_bit_reference ? "agrees, bits" : "agrees";
}

std::string table_line(const std::string& ranks, const std::string& result,
                       const std::string& difference, const std::string& of_bound,
                       const std::string& layout) {
  std::array<char, 80> columns{};
  std::snprintf(columns.data(), columns.size(), "%5s  %-12s  %10s  %8s  ", ranks.c_str(),
                result.c_str(), difference.c_str(), of_bound.c_str());
  return columns.data() + layout + "\n";
}

std::ptrdiff_t count_bad(std::span<const TrialResult> results) {
  return std::ranges::count_if(results, [](const auto& one) { return !one.agrees(); });
}

}  // namespace

std::string heading_of(const VerifyOptions& options, const Recipe& user, const VerifyPlan& plan) {
  const std::span<const Trial> trials = plan.trials;
  const std::int64_t samples = trials.front().recipe.train.global_batch_size;
  std::ostringstream text;
  text << plural(std::ssize(trials) - 1, "layout") << " of up to "
       << plural(most_ranks(trials), "rank")
       << " against one rank: " << plural(options.steps, "step") << " each, fp64, SGD, " << samples
       << " samples a step";
  if (samples != user.train.global_batch_size) {
    text << " (the recipe's " << user.train.global_batch_size << " would take longer)";
  }
  text << "\n";
  if (plan.own && !plan.own->layout) text << plan.own->left_out << "\n";
  text << table_line("ranks", "result", "difference", "of bound", "layout");
  return text.str();
}

std::string line_of(const TrialResult& result) {
  const Comparison& found = result.with_reference;
  const bool ended = result.error.empty();
  std::string line = table_line(std::to_string(result.ranks), word_of(result),
                                ended ? short_number(found.difference) : "-",
                                ended ? short_number(found.of_tolerance) : "-", result.layout);
  if (!result.agrees()) line += std::string(7, ' ') + result.describe_failure() + "\n";
  return line;
}

std::string summary_of(std::span<const TrialResult> results) {
  const std::ptrdiff_t others = std::ssize(results) - 1, bad = count_bad(results);
  if (bad == 0 && others == 1) return "it agrees with one rank\n";
  if (bad == 0) return "all " + std::to_string(others) + " agree with one rank\n";
  return std::to_string(bad) + " of " + std::to_string(others) + (bad == 1 ? " does" : " do") +
         " not agree with one rank\n";
}

std::string to_json(const VerifyOptions& options, const VerifyPlan& plan,
                    std::span<const TrialResult> results) {
  nlohmann::ordered_json json{{"agree", all_agree(results)}, {"steps", options.steps}};
  if (plan.own && plan.own->layout) {
    json["own_layout"] = plan.own->name;
  } else if (plan.own) {
    json["own_layout"] = nullptr;
    json["own_layout_left_out"] = plan.own->left_out;
  }
  for (const TrialResult& one : results) {
    json["layouts"].push_back(nlohmann::ordered_json::parse(to_json(one)));
  }
  return json.dump();
}

bool all_agree(std::span<const TrialResult> results) {
  return count_bad(results) == 0;
}

}  // namespace troika
