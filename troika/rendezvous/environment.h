// The environment variables that launchers set, read with names in every error. A value type rather
// than getenv, so that tests can pass what a real launcher has set.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace troika {

class Environment {
 public:
  using Variables = std::map<std::string, std::string, std::less<>>;

  // The facts of a host as seen from inside. Tests replace it.
  struct Host {
    std::string name;
    // Return whether a host name has an address, and whether that address is this host's.
    std::function<bool(const std::string&)> resolves;
    std::function<bool(const std::string&)> is_this_host;
    // Names the process that has started this one: the peer of the socket given, else the parent.
    std::function<std::string(std::optional<int> socket)> launcher_id;
  };

  // Returns the environment of this process.
  [[nodiscard]] static Environment of_process();
  Environment(Variables variables, Host host);

  // Return whether a variable is set, and its text. One that is set to the empty string counts as
  // not set.
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] std::optional<std::string> text(std::string_view name) const;
  [[nodiscard]] std::string text_or(std::string_view name, std::string_view otherwise) const;
  // Returns a whole number in [0, 2^31). Throws UsageError naming the variable and its value
  // otherwise.
  [[nodiscard]] std::optional<int> number(std::string_view name) const;
  // Returns a number that must be set. Throws UsageError naming `name`, and `because`, the variable
  // that makes it necessary.
  [[nodiscard]] int needed_number(std::string_view name, std::string_view because) const;
  [[nodiscard]] const Host& host() const { return host_; }

 private:
  [[nodiscard]] const std::string* find(std::string_view name) const;

  Variables variables_;
  Host host_;
};

}  // namespace troika
