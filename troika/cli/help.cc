#include <troika/cli/help.h>

namespace troika {
namespace {

constexpr std::size_t kColumn = 30;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() {
    column_width(kColumn);
    label("INT", "N");
    label("UINT", "N");
    label("FLOAT", "X");
    label("Positionals", "Arguments");
  }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return replaced(CLI::Formatter::make_help(app, std::move(name), mode), "\n\n\n", "\n\n");
  }

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return replaced(CLI::Formatter::make_option_name(option, is_positional), ",", ", ");
  }

  // The type of a flag's value.
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    if (option->get_positional() || option->get_type_size() == 0 || type.empty()) return "";
    return " " + get_label(type);
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string value = option->get_default_str();
    return option->get_description() + (value.empty() ? "" : " (default: " + value + ")");
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  return std::make_shared<HelpFormatter>();
}

}  // namespace troika
