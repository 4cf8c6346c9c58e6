// Every combination of [parallel] either runs, or is refused with a sentence that names the key and
// a nearest value, and what that names runs.
#include <gmock/gmock.h>
#include <troika/recipe/resolve.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "recipe_text.h"

namespace troika::testing {
namespace {

using Settings = std::vector<std::string>;

struct Combination {
  std::string model;  // a recipe
  Settings settings;  // as --set takes them
  KnownRanks ranks;
};

std::string describe(const Combination& one) {
  return ::testing::PrintToString(one.settings) +
         (one.ranks ? " on " + std::to_string(*one.ranks) + " ranks" : " on any ranks");
}

struct Refusal {
  std::string message, hint;
  explicit operator bool() const { return !message.empty(); }
};

// What a run of it says at start.
Refusal refusal_of(const Combination& one) {
  try {
    const LoadedRecipe loaded = parse_recipe(one.model, "recipe.toml", one.settings, one.ranks);
    if (one.ranks) {
      (void)resolve_recipe(loaded.recipe, static_cast<int>(*one.ranks), loaded.origins);
    }
  } catch (const UsageError& error) {
    return {error.what(), error.hint()};
  }
  return {};
}

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end != std::string_view::npos) text.remove_prefix(end + separator.size());
  }
  return parts;
}

// "tensor = 2" as --set takes it.
std::string setting_of(const std::string& written) {
  const std::vector<std::string> sides = split(written, " = ");
  if (sides.size() != 2) throw std::logic_error("no setting: '" + written + "'");
  const std::string_view section = sides[0] == "global_batch_size" ? "train." : "parallel.";
  return std::string(section) + sides[0] + "=" + sides[1];
}

Combination with_settings(Combination one, const std::vector<std::string>& written) {
  for (const std::string& setting : written) one.settings.push_back(setting_of(setting));
  return one;
}

Combination on_ranks(Combination one, const std::string& number) {
  one.ranks = std::stoi(number);
  return one;
}

std::string last_word(const std::string& text) {
  return text.substr(text.find_last_of(' ') + 1);
}

// Each change that a hint for `key` offers, made: "write A = 1 and B = 2 or 3, or start 4 or 8
// ranks", "[] cuts by cost".
std::vector<Combination> followed(const Combination& one, const std::string& hint,
                                  std::string key) {
  std::vector<Combination> offers;
  std::string text = hint;
  for (std::size_t at = 0; (at = text.find(", or ", at)) != std::string::npos;) {
    text.replace(at, 5, " or ");
  }
  for (std::string part : split(text, " or ")) {
    const bool starts = part.starts_with("start ");
    if (part.starts_with("write ")) part = part.substr(6);
    if (part.starts_with("start at most ") || part.starts_with("more ")) continue;  // not one value
    if (part.starts_with("start with --ranks ")) {
      offers.push_back(on_ranks(one, last_word(part)));
    } else if (starts || part.ends_with(" ranks") || part.ends_with(" rank")) {
      const std::string words = starts ? part.substr(6) : part;
      offers.push_back(on_ranks(one, words.substr(0, words.find(' '))));
    } else if (part.find(" = ") != std::string::npos) {
      key = split(part, " = ")[0];
      offers.push_back(with_settings(one, split(part, " and ")));
    } else if (part == "less") {
      Combination least = offers.back();
      least.settings.back() = setting_of(key + " = 1");
      offers.push_back(least);
    } else {  // another value of the same key
      offers.push_back(with_settings(one, {key + " = " + part.substr(0, part.find(' '))}));
    }
  }
  return offers;
}

// What the sentence itself offers, where there is no hint: "...; write context = 1".
std::string offers_of(const Refusal& refusal) {
  if (!refusal.hint.empty()) return refusal.hint;
  const std::size_t at = refusal.message.find("; write ");
  return at == std::string::npos ? "" : refusal.message.substr(at + 2);
}

std::string value_of(const std::string& setting) {
  return setting.substr(setting.find('=') + 1);
}

// Whether it names one of the keys that were set, of its own section, beside what was written.
bool names_a_key(const std::string& message, const Settings& settings) {
  return std::ranges::any_of(settings, [&](const std::string& setting) {
    const std::string full = setting.substr(0, setting.find('='));
    const std::size_t dot = full.find('.');
    const std::string section = "[" + full.substr(0, dot) + "] ";
    if (message.find(section) == std::string::npos) return false;
    const std::string key = full.substr(dot + 1), value = value_of(setting);
    for (const std::string& written : {value, "\"" + value + "\""}) {
      if (message.find(key + " = " + written) != std::string::npos) return true;
    }
    // The product of axes; a list.
    return message.find(key + " x ") != std::string::npos ||
           message.find(key + ": ") != std::string::npos;
  });
}

// What the message complains of: "tensor", "pipeline", "tensor x pipeline x context".
std::string complaint_of(const std::string& message) {
  const std::size_t begin = message.find("] ");
  return message.substr(begin + 2, message.find_first_of("=:0123456789", begin) - begin - 2);
}

struct Count {
  int accepted = 0, refused = 0, mended = 0, mended_at_once = 0;
};

// Follows all offers, to where the combination runs. What is wrong in two ways is refused for one
// of them first, then for the other; never again for the same.
void follow(const Combination& one, const Refusal& refusal, std::set<std::string> seen,
            Count& count) {
  ASSERT_TRUE(names_a_key(refusal.message, one.settings)) << describe(one) << refusal.message;
  ASSERT_TRUE(seen.insert(complaint_of(refusal.message)).second)
      << describe(one) << ": the same once more: " << refusal.message;
  const std::vector<Combination> offers =
      followed(one, offers_of(refusal), complaint_of(refusal.message));
  ASSERT_FALSE(offers.empty()) << describe(one) << ": no way out: " << refusal.message;
  for (const Combination& offer : offers) {
    const Refusal next = refusal_of(offer);
    if (next) {
      follow(offer, next, seen, count);
    } else {
      ++(seen.size() == 1 ? count.mended_at_once : count.mended);
    }
    if (::testing::Test::HasFatalFailure()) {
      ADD_FAILURE() << "after " << describe(one) << ": " << refusal.message
                    << "\n  hint: " << offers_of(refusal);
      return;
    }
  }
}

void examine(const Combination& one, Count& count) {
  const Refusal refusal = refusal_of(one);
  if (!refusal) {
    ++count.accepted;
  } else {
    ++count.refused;
    follow(one, refusal, {}, count);
  }
}

void expect_a_mixture(const Count& count) {
  EXPECT_GT(count.accepted, 300);
  EXPECT_GT(count.refused, 300);
  EXPECT_GT(count.mended_at_once, count.refused / 2);
}

std::string parallel_setting(const std::string& key, std::int64_t value) {
  return "parallel." + key + "=" + std::to_string(value);
}

const std::vector<KnownRanks> kRanks = {std::nullopt, 1, 2, 3, 4, 6, 8, 12};

const std::string kModel = with(with(kGptRecipe, "heads = 4\n", "heads = 3\nhead_dim = 16\n"),
                                "layers = 2\n", "layers = 5\n");

TEST(Combinations, OfAxesAndSchedules) {
  Count count;
  for (const KnownRanks& ranks : kRanks) {
    for (const std::string data : {"auto", "1", "2", "3"}) {
      for (int tensor = 1; tensor <= 4; ++tensor) {
        for (int pipeline = 1; pipeline <= 6; ++pipeline) {
          for (const std::string schedule :
               {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"}) {
            for (int virtual_stages = 1; virtual_stages <= 4; ++virtual_stages) {
              examine({kModel,
                       {"parallel.data=" + data, parallel_setting("tensor", tensor),
                        parallel_setting("pipeline", pipeline),
                        "parallel.pipeline_schedule=" + schedule,
                        parallel_setting("virtual_stages", virtual_stages)},
                       ranks},
                      count);
              if (HasFailure()) return;  // the others say the same
            }
          }
        }
      }
    }
  }
  expect_a_mixture(count);
}

TEST(Combinations, OfAxesAndShards) {
  Count count;
  for (const KnownRanks& ranks : kRanks) {
    for (const std::string data : {"auto", "1", "2", "3", "4", "6"}) {
      for (int tensor = 1; tensor <= 4; ++tensor) {
        for (const int pipeline : {1, 2, 3, 6}) {
          for (int zero = 0; zero <= 3; ++zero) {
            for (int shard = 0; shard <= 5; ++shard) {
              examine({kModel,
                       {"parallel.data=" + data, parallel_setting("tensor", tensor),
                        parallel_setting("pipeline", pipeline),
                        parallel_setting("zero_stage", zero), parallel_setting("shard", shard)},
                       ranks},
                      count);
              if (HasFailure()) return;  // the others say the same
            }
          }
        }
      }
    }
  }
  expect_a_mixture(count);
}

// The keys whose values are refused, or not, whatever the ranks.
void examine_choices(const std::string& model, Count& count) {
  for (const KnownRanks& ranks : {KnownRanks(), KnownRanks(2), KnownRanks(4)}) {
    for (const int pipeline : {1, 4}) {
      for (int tensor = 1; tensor <= 2; ++tensor) {
        for (const std::string checkpoint : {"none", "selective", "full"}) {
          for (const std::string units : {"[]", "[3,4]", "[2,2,2,1]", "[1,2]", "[9]"}) {
            for (int context = 1; context <= 2; ++context) {
              examine({model,
                       {parallel_setting("pipeline", pipeline), parallel_setting("tensor", tensor),
                        parallel_setting("context", context),
                        "parallel.activation_checkpoint=" + checkpoint,
                        "parallel.stage_units=" + units},
                       ranks},
                      count);
              if (::testing::Test::HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(Combinations, OfTheOtherKeys) {
  Count count;
  examine_choices(kModel, count);
  examine_choices(kMlpRecipe, count);
  EXPECT_GT(count.accepted, 20);
  EXPECT_GT(count.refused, 300);
}

// A batch is no key of [parallel], and bounds its data axis.
TEST(Combinations, WithAnyBatch) {
  Count count;
  for (const KnownRanks& ranks : kRanks) {
    for (int batch = 1; batch <= 6; ++batch) {
      for (const std::string data : {"auto", "2", "4", "6"}) {
        for (int tensor = 1; tensor <= 3; ++tensor) {
          examine({kModel,
                   {"train.global_batch_size=" + std::to_string(batch), "parallel.data=" + data,
                    parallel_setting("tensor", tensor)},
                   ranks},
                  count);
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(count.refused, 50);
}

}  // namespace
}  // namespace troika::testing
