#include <troika/base/error.h>
#include <troika/base/plugin_folder.h>
#include <troika/base/text.h>
#include <troika/rpc/library.h>

#include <charconv>

namespace troika::detail {

const rpc_plugin::RpcPlugin& rpc_library() {
  static const rpc_plugin::RpcPlugin& loaded = []() -> const rpc_plugin::RpcPlugin& {
    const auto path = find_plugin(rpc_plugin::kFile);
    if (!path) {
      throw UsageError("requests between processes need the plug-in " +
                           std::string(rpc_plugin::kFile) + ", which this build was made without",
                       "build again without TROIKA_ARROW=0, or name its folder in " +
                           std::string(kPluginsVariable));
    }
    const auto entry = reinterpret_cast<rpc_plugin::PluginEntry>(
        load_plugin(*path, rpc_plugin::kPluginEntry, PluginScope::kLocal));
    return *entry();
  }();
  return loaded;
}

RpcAddress parse_rpc_address(std::string_view text, int least) {
  const std::size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, std::min(colon, text.size()));
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string_view number = colon < text.size() ? text.substr(colon + 1) : "";
  int port = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), port);
  const bool whole = error == std::errc() && end == number.data() + number.size();
  const bool plain =
      host.find_first_of(bracketed ? "[]/@% \t\n" : "[]/@%: \t\n") == std::string_view::npos;
  if (host.empty() || !plain || !whole || port < least || port > 65535) {
    throw UsageError(quote(text) + " is no address for requests",
                     "write HOST:PORT, or [ADDRESS]:PORT for IPv6");
  }
  return {std::string(host), port};
}

}  // namespace troika::detail
