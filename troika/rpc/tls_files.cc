#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/rpc/tls_files.h>

namespace troika::detail {
namespace {

// Reads a file that holds `kind`, as its lines "-----BEGIN ... kind-----" say.
std::string read_pem(const std::string& path, std::string_view name, std::string_view kind) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 20;
  if (path.empty()) {
    throw UsageError("TLS lacks the file of its " + std::string(name),
                     "name certificate, key and authority, or none of them for plain connections");
  }
  std::string text = read_file(path, kMost);
  const std::size_t begin = text.find("-----BEGIN ");
  const std::size_t end = begin == std::string::npos ? begin : text.find('\n', begin);
  const std::string_view line = std::string_view(text).substr(
      std::min(begin, text.size()), end == std::string::npos ? 0 : end - begin);
  if (line.find(kind) == std::string_view::npos) {
    throw UsageError(shown_path(path) + " is no " + std::string(name) + " in PEM",
                     "its first line is -----BEGIN " + std::string(kind) + "-----");
  }
  if (line.find("ENCRYPTED") != std::string_view::npos) {
    throw UsageError(shown_path(path) + " is a key with a passphrase",
                     "openssl pkey -in KEY -out PLAIN_KEY takes it off; keep that file private");
  }
  return text;
}

}  // namespace

std::optional<rpc_plugin::Tls> read_tls(const std::optional<TlsFiles>& files) {
  if (!files) return std::nullopt;
  return rpc_plugin::Tls{read_pem(files->certificate, "certificate", "CERTIFICATE"),
                         read_pem(files->key, "key", "PRIVATE KEY"),
                         read_pem(files->authority, "authority", "CERTIFICATE")};
}

}  // namespace troika::detail
