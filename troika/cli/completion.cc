// Shell completion, written from the command line's own description, so that it cannot fall behind.
#include <troika/base/text.h>
#include <troika/cli/command.h>
#include <troika/recipe/recipe.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace troika {
namespace {

struct Word {
  std::string text;  // "train", "--ranks"
  std::string description;
};

// What may follow "troika", "troika data", ...
struct Level {
  std::string path;
  std::vector<Word> subcommands;
  std::vector<Word> flags;
};

void collect(const CLI::App& app, const std::string& path, std::vector<Level>& levels) {
  Level level{path, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const std::string& name : option->get_lnames()) {
      level.flags.push_back({"--" + name, option->get_description()});
    }
  }
  std::vector<const CLI::App*> inner;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    if (sub->get_group().empty()) continue;
    level.subcommands.push_back({sub->get_name(), sub->get_description()});
    inner.push_back(sub);
  }
  levels.push_back(std::move(level));
  for (const CLI::App* sub : inner) collect(*sub, path + " " + sub->get_name(), levels);
}

// "name=", "model.layers=": what may follow --set.
std::vector<std::string> recipe_keys() {
  std::vector<std::string> keys;
  std::set<std::string> seen;
  for (const SchemaKey& key : recipe_schema().all_keys()) {
    if (seen.insert(key.full_name()).second) keys.push_back(key.full_name() + "=");
  }
  return keys;
}

std::string words_of(const Level& level) {
  std::vector<std::string_view> words;
  for (const Word& word : level.subcommands) words.push_back(word.text);
  for (const Word& word : level.flags) words.push_back(word.text);
  return join(words, " ");
}

// The paths of the levels below the first, as patterns of a `case`.
std::string inner_paths(const std::vector<Level>& levels) {
  std::vector<std::string> patterns;
  for (const Level& level : levels) {
    if (level.path.find(' ') != std::string::npos) patterns.push_back("\"" + level.path + "\"");
  }
  return join(patterns, "|");
}

std::string bash_script(const std::vector<Level>& levels) {
  std::string text =
      "# bash completion of troika.   source <(troika completion bash)\n"
      "_troika() {\n"
      "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
      "  local path=troika words= word\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case \"$path $word\" in\n"
      "      " +
      inner_paths(levels) +
      ") path=\"$path $word\" ;;\n"
      "    esac\n"
      "  done\n"
      "  if [ \"$previous\" = --set ]; then\n"
      "    compopt -o nospace\n"
      "    COMPREPLY=($(compgen -W \"" +
      join(recipe_keys(), " ") +
      "\" -- \"$current\"))\n"
      "    return\n"
      "  fi\n"
      "  case \"$path\" in\n";
  for (const Level& level : levels) {
    text += "    \"" + level.path + "\") words=\"" + words_of(level) + "\" ;;\n";
  }
  text +=
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}\n"
      "complete -o default -F _troika troika\n";
  return text;
}

// In single quotes, with a quote as '\''; `escaped` get a backslash.
std::string shell_quoted(std::string_view text, std::string_view escaped = {}) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
      continue;
    }
    if (escaped.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result + "'";
}

std::string zsh_words(const std::vector<Word>& words) {
  std::string text;
  for (const Word& word : words) {
    text += " " + shell_quoted(word.text) + ":" + shell_quoted(word.description, ":\\");
  }
  return text;
}

std::string zsh_script(const std::vector<Level>& levels) {
  std::string text =
      "#compdef troika\n"
      "# zsh completion of troika.   source <(troika completion zsh)\n"
      "_troika() {\n"
      "  local level=troika word\n"
      "  local -a subcommands flags\n"
      "  for word in \"${(@)words[2,CURRENT-1]}\"; do\n"
      "    case \"$level $word\" in\n"
      "      " +
      inner_paths(levels) +
      ") level=\"$level $word\" ;;\n"
      "    esac\n"
      "  done\n"
      "  if [[ \"${words[CURRENT-1]}\" == --set ]]; then\n"
      "    compadd -S '' -- " +
      join(recipe_keys(), " ") +
      "\n"
      "    return\n"
      "  fi\n"
      "  case \"$level\" in\n";
  for (const Level& level : levels) {
    text += "    \"" + level.path + "\")\n      subcommands=(" + zsh_words(level.subcommands) +
            " )\n      flags=(" + zsh_words(level.flags) + " ) ;;\n";
  }
  text +=
      "  esac\n"
      "  if (( $#subcommands )); then _describe -t commands command subcommands; else _files; fi\n"
      "  _describe -o option flags\n"
      "}\n"
      "compdef _troika troika\n";
  return text;
}

std::string fish_script(const std::vector<Level>& levels) {
  std::string text = "# fish completion of troika.   troika completion fish | source\n";
  for (const Level& level : levels) {
    const bool outermost = level.path.find(' ') == std::string::npos;
    std::vector<std::string_view> inner;
    for (const Word& word : level.subcommands) inner.push_back(word.text);
    const std::string name = level.path.substr(level.path.rfind(' ') + 1);
    // Inside this level, and not yet inside one of its subcommands.
    std::string here = outermost ? "__fish_use_subcommand" : "__fish_seen_subcommand_from " + name;
    if (!outermost && !inner.empty()) {
      here += "; and not __fish_seen_subcommand_from " + join(inner, " ");
    }
    const std::string start = "complete -c troika -n " + shell_quoted(here);
    for (const Word& word : level.subcommands) {
      text += start + " -f -a " + word.text + " -d " + shell_quoted(word.description, "\\") + "\n";
    }
    for (const Word& word : level.flags) {
      text += start + " -l " + word.text.substr(2) + " -d " + shell_quoted(word.description, "\\");
      if (word.text == "--set") text += " -x -a " + shell_quoted(join(recipe_keys(), " "));
      text += "\n";
    }
  }
  return text;
}

int print_script(const CLI::App& app, const std::string& shell) {
  std::vector<Level> levels;
  collect(app, "troika", levels);
  if (shell == "bash") std::cout << bash_script(levels);
  if (shell == "zsh") std::cout << zsh_script(levels);
  if (shell == "fish") std::cout << fish_script(levels);
  return 0;
}

}  // namespace

void add_completion_command(CLI::App& app, Action& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "Print a shell's completion script");
  completion->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer(
      "Examples:\n"
      "  source <(troika completion bash)     # or add this line to ~/.bashrc\n"
      "  source <(troika completion zsh)      # or add this line to ~/.zshrc\n"
      "  troika completion fish > ~/.config/fish/completions/troika.fish");
  completion->callback(
      [shell, &app, &action] { action = [shell, &app] { return print_script(app, *shell); }; });
}

}  // namespace troika
