#include <troika/base/failure.h>
#include <troika/base/text.h>
#include <troika/cli/run.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace troika {
namespace {

int report(const Failure& failure) {
  std::cout.flush();
  std::fprintf(stderr, "troika: %s\n", failure.message.c_str());
  if (!failure.hint.empty()) std::fprintf(stderr, "hint: %s\n", failure.hint.c_str());
  return static_cast<int>(failure.code);
}

// The subcommand that was being read when the words ran out.
CLI::App& innermost(CLI::App& app) {
  CLI::App* current = &app;
  while (!current->get_subcommands().empty()) current = current->get_subcommands().back();
  return *current;
}

// "troika data prepare"
std::string path_of(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : path_of(*parent) + " " + app.get_name();
}

// The start of a message: "data prepare: ", and nothing for the command itself.
std::string label_of(const CLI::App& app) {
  const std::string path = path_of(app);
  const std::size_t space = path.find(' ');
  return space == std::string::npos ? "" : path.substr(space + 1) + ": ";
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    if (!sub->get_group().empty()) names.push_back(sub->get_name());
  }
  return names;
}

UsageError unknown_word(const CLI::App& app, const std::string& word) {
  const bool is_flag = word.starts_with("-");
  const std::vector<std::string> known = is_flag ? flags_of(app) : subcommands_of(app);
  std::string message = label_of(app);
  if (is_flag) {
    message += "unknown flag " + quote(word);
  } else {
    message += (known.empty() ? "unexpected argument " : "unknown subcommand ") + quote(word);
  }
  // "--layrs=3" is a misspelt "--layers".
  const std::string name = is_flag ? word.substr(0, word.find('=')) : word;
  if (const auto likely = nearest(name, known)) message += "; did you mean '" + *likely + "'?";
  return UsageError(message, "`" + path_of(app) + " --help` explains with examples");
}

const CLI::Option* option_of(const CLI::App& app, const std::string& name) {
  return name.empty() ? nullptr : app.get_option_no_throw(name);
}

// "--ranks = x" behind the parser's words for a value that it cannot read.
std::string conversion_message(const CLI::App& app, std::string_view pair) {
  const std::size_t equals = pair.find(" = ");
  if (equals == std::string_view::npos) return "cannot read " + quote(pair);
  const std::string name(pair.substr(0, equals)), value(pair.substr(equals + 3));
  const CLI::Option* option = option_of(app, name);
  const std::string type = option ? option->get_type_name() : "";
  if (!type.starts_with("INT") && !type.starts_with("UINT")) {
    return name + " " + value + " is no number";
  }
  const bool digits = !value.empty() && value.find_first_not_of("-0123456789") == std::string::npos;
  return name + " " + value + (digits ? " is too large a number" : " is no whole number");
}

// The parser's message in our words, where they differ. Its own name the flag as well.
std::string words_of(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  const std::string_view all = text;
  constexpr std::string_view kConversion = "Could not convert: ";
  if (all.starts_with(kConversion)) return conversion_message(app, all.substr(kConversion.size()));
  const std::string name = text.substr(0, std::min(text.find(": "), text.size()));
  if (option_of(app, name) != nullptr && dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    if (all.ends_with(" missing")) return name + " needs a value";
    if (all.find("At Most 1 ") != std::string_view::npos) return name + " is given more than once";
  }
  if (dynamic_cast<const CLI::ExcludesError*>(&error)) {
    const std::size_t excludes = text.find(" excludes ");
    if (excludes != std::string::npos) {
      return text.substr(0, excludes) + " and " + text.substr(excludes + 10) +
             " exclude each other";
    }
  }
  return text;
}

// The flag that has taken the "--" in front of a program for its value, which is missing.
const CLI::Option* flag_without_value(const CLI::App& app) {
  if (!app.get_positionals_at_end()) return nullptr;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) continue;
    if (std::ranges::find(option->results(), "--") != option->results().end()) return option;
  }
  return nullptr;
}

void refuse_flag_without_value(const CLI::App& app) {
  const CLI::Option* flag = flag_without_value(app);
  if (flag == nullptr) return;
  throw UsageError(label_of(app) + flag->get_name() + " needs a value",
                   "`" + path_of(app) + " --help` explains with examples");
}

UsageError usage_error(CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& current = innermost(app);
  refuse_flag_without_value(current);
  std::vector<std::string> extras = app.remaining(true);
  std::erase(extras, "--");  // it ends the flags, and is none
  if (!extras.empty()) return unknown_word(current, extras.front());
  const std::vector<std::string> subcommands = subcommands_of(current);
  const std::string hint = "`" + path_of(current) + " --help` explains with examples";
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !subcommands.empty()) {
    return UsageError(label_of(current) + "a subcommand is missing: " + join(subcommands, ", "),
                      hint);
  }
  return UsageError(label_of(current) + words_of(current, error), hint);
}

void run(CLI::App& app, Action& action, int argc, const char* const* argv, int& code) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    app.exit(done);
    code = 0;
    return;
  } catch (const CLI::ParseError& error) {
    throw usage_error(app, error);
  }
  refuse_flag_without_value(innermost(app));
  if (!action) throw InternalError("internal error: the subcommand set no action");
  code = action();
}

}  // namespace

int run_command_line(CLI::App& app, Action& action, int argc, const char* const* argv) {
  int code = static_cast<int>(ExitCode::kInternal);
  try {
    run(app, action, argc, argv, code);
    if (!std::cout.flush()) throw StorageError("cannot write to standard output");
    return code;
  } catch (const InterruptedError& error) {
    report(failure_of(error));
    return error.exit_status();
  } catch (const std::exception& error) {
    return report(failure_of(error));
  }
}

}  // namespace troika
