// Mutual TLS: who is let in, who is not, and what is said then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>

#include <cstdlib>

#include "support/temporary_folder.h"
#include "unit/rpc/support.h"

namespace troika::test {
namespace {

using testing::HasSubstr;

class RpcTls : public Rpc {
 protected:
  void SetUp() override {
    Rpc::SetUp();
    if (IsSkipped()) return;
    if (std::system("openssl version > /dev/null 2>&1") != 0) {
      GTEST_SKIP() << "the command openssl, which makes certificates, is not there";
    }
  }

  // Runs openssl in the folder.
  void openssl(const std::string& arguments) const {
    const std::string command =
        "cd '" + folder_.path().string() + "' && openssl " + arguments + " > log 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << read_file(folder_ / "log", 1 << 20);
  }

  void make_authority(const std::string& name) const {
    openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" +
            name + " -keyout " + name + ".key -out " + name + ".pem");
  }

  // Makes the files of one side, whose certificate names `host`.
  [[nodiscard]] TlsFiles make_side(const std::string& name, const std::string& authority,
                                   const std::string& host = "IP:127.0.0.1") const {
    openssl("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + name +
            " -keyout " + name + ".key -out " + name + ".csr");
    write_file_atomically(folder_ / (name + ".ext"), "subjectAltName=" + host);
    openssl("x509 -req -in " + name + ".csr -CA " + authority + ".pem -CAkey " + authority +
            ".key -CAcreateserial -days 2 -extfile " + name + ".ext -out " + name + ".pem");
    return {folder_ / (name + ".pem"), folder_ / (name + ".key"), folder_ / (authority + ".pem")};
  }

  // Returns the error of a call, with its hint.
  static std::string error_of(int port, const std::optional<TlsFiles>& files) {
    RpcClientOptions options;
    options.tls = files;
    RpcClient client(local(port), options);
    try {
      static_cast<void>(client.call("echo", message_of("a"), soon()));
      return "none";
    } catch (const PeerError& error) {
      return std::string(error.what()) + "; " + error.hint();
    }
  }

  static RpcServerOptions options_with(const std::optional<TlsFiles>& files) {
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.tls = files;
    return options;
  }

  TemporaryFolder folder_;
};

TEST_F(RpcTls, LetsInWhomTheAuthorityKnows) {
  make_authority("ours");
  make_authority("theirs");
  const TlsFiles server_files = make_side("server", "ours");
  const TlsFiles client_files = make_side("client", "ours", "DNS:a-client");
  TlsFiles foreign = make_side("foreign", "theirs");
  const RpcServer server(options_with(server_files), Handler());

  RpcClientOptions options;
  options.tls = client_files;
  RpcClient client(local(server.port()), options);
  const std::vector<std::byte> body = numbered(3'000'000);
  const RpcReply reply = client.call("echo", message_of("a", body), soon());
  EXPECT_TRUE(std::ranges::equal(reply.body, body));

  // Neither trusts the other; then the client trusts the server alone.
  EXPECT_THAT(error_of(server.port(), foreign), HasSubstr("signed by the authority"));
  foreign.authority = server_files.authority;
  EXPECT_THAT(error_of(server.port(), foreign), HasSubstr("signed by the server's authority?"));
  EXPECT_THAT(error_of(server.port(), std::nullopt), HasSubstr("demands TLS"));
  EXPECT_EQ(client.call("echo", message_of("b"), soon()).header, "b");
}

TEST_F(RpcTls, RefusesAServerThatIsNotKnown) {
  make_authority("ours");
  make_authority("theirs");
  const TlsFiles files = make_side("client", "ours");
  const RpcServer foreign(options_with(make_side("foreign", "theirs")), Handler());
  EXPECT_THAT(error_of(foreign.port(), files), HasSubstr("signed by the authority given here"));
  const RpcServer elsewhere(options_with(make_side("elsewhere", "ours", "DNS:elsewhere")),
                            Handler());
  EXPECT_THAT(error_of(elsewhere.port(), files), HasSubstr("to name the host"));
  const RpcServer plain(options_with(std::nullopt), Handler());
  testing::internal::CaptureStderr();
  EXPECT_THAT(error_of(plain.port(), files), HasSubstr("without TLS"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // gRPC would have something to say
}

// Returns the error of a server that starts with these files.
template <class Expected>
std::string error_at_start(const TlsFiles& files) {
  RpcServerOptions options;
  options.listen = "127.0.0.1:0";
  options.tls = files;
  try {
    const RpcServer server(options, Handler());
    return "none";
  } catch (const Expected& error) {
    return error.what();
  }
}

TEST_F(RpcTls, NamesFilesThatCannotBeUsed) {
  make_authority("ours");
  const TlsFiles good = make_side("server", "ours");
  const TlsFiles other = make_side("other", "ours");
  TlsFiles files = good;
  files.key.clear();
  EXPECT_THAT(error_at_start<UsageError>(files), HasSubstr("TLS lacks the file of its key"));
  files.key = folder_ / "none";
  EXPECT_THAT(error_at_start<DataError>(files), HasSubstr("none'"));
  files.key = good.certificate;
  EXPECT_THAT(error_at_start<UsageError>(files), HasSubstr("server.pem' is no key in PEM"));
  openssl("pkey -in server.key -aes256 -passout pass:secret -out locked.key");
  files.key = folder_ / "locked.key";
  EXPECT_THAT(error_at_start<UsageError>(files), HasSubstr("is a key with a passphrase"));
  files.key = other.key;
  EXPECT_THAT(error_at_start<RendezvousError>(files),
              HasSubstr("does the key belong to the certificate?"));
}

}  // namespace
}  // namespace troika::test
