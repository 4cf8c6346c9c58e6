// Internal: the option of commands that names a template of conversations.
#pragma once

#include <troika/data/chat/chat_template.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

namespace troika {

// Returns the template of this name, which the option has let through.
[[nodiscard]] inline ChatTemplate chat_template_named(const std::string& name) {
  const auto names = names_of<ChatTemplate>();
  return static_cast<ChatTemplate>(std::ranges::find(names, name) - names.begin());
}

// Adds --template, which stores the name of one that there is.
inline CLI::Option* add_template_option(CLI::App& command, std::string& name,
                                        const std::string& help) {
  const auto names = names_of<ChatTemplate>();
  return command.add_option("--template", name, help)
      ->check(CLI::IsMember(std::vector<std::string>(names.begin(), names.end())));
}

}  // namespace troika
