// A server of parameters that real clients reach, and that dies and comes back.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/server/messages.h>
#include <troika/server/shard_service.h>

#include <optional>
#include <string>

#include "support/reserved_port.h"
#include "support/temporary_folder.h"

namespace troika::test {

using messages::Json;

// Skips where this build has no plug-in.
class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      const RpcServer tried({"127.0.0.1:0"}, [](const RpcRequest&) { return RpcMessage(); });
    } catch (const UsageError&) {
      GTEST_SKIP() << "TROIKA_ARROW is off";
    }
  }
};

inline Deadline soon() {
  return Deadline::in(Seconds(60));
}

inline RpcMessage message_of(const Json& header, const at::Tensor& body = {}) {
  RpcMessage message{header.dump(), {}, {}};
  if (body.defined()) message.body.push_back(messages::bytes_of(body));
  return message;
}

// A server with one parameter, of SGD without momentum, at an address that it keeps.
class ShardProcess {
 public:
  ShardProcess(std::int64_t size, std::int64_t save_every) : size_(size), save_every_(save_every) {
    start();
  }

  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_.port()); }
  [[nodiscard]] std::int64_t size() const { return size_; }

  void start() {
    ShardServiceOptions options;
    options.optimizer.kind = Chosen<OptimizerKind>::named("sgd");
    options.optimizer.weight_decay = 0;
    options.file = folder_ / "shard.safetensors";
    options.save_every = save_every_;
    service_.emplace(std::move(options));
    server_.emplace(RpcServerOptions{address()},
                    [this](const RpcRequest& request) { return service_->answer(request); });
  }
  // Loses what it has not saved, as where a process is killed.
  void kill() {
    server_.reset();
    service_.reset();
  }

  [[nodiscard]] Json init_header(const std::string& run = "run") const {
    Json piece = {{"name", "a"}, {"count", size_}, {"decays", true}, {"lr_factor", 1.0}};
    return {{"run", run},
            {"type", "float64"},
            {"version", 0},
            {"step", 0},
            {"pieces", Json::array({piece})}};
  }
  // Begins a run with zeros.
  void init() {
    RpcClient client(address());
    static_cast<void>(
        client.call("init", message_of(init_header(), at::zeros({size_}, at::kDouble)), soon()));
  }
  // Returns its values [size()], and the updates in them.
  struct Values {
    at::Tensor values;
    std::int64_t version = 0;
  };
  [[nodiscard]] Values pull() const {
    RpcClient client(address());
    Values pulled{at::empty({size_}, at::kDouble)};
    const RpcReply reply = client.call("pull", message_of({{"run", "run"}, {"state", false}}),
                                       soon(), messages::bytes_of(pulled.values));
    pulled.version =
        messages::value<std::int64_t>(messages::parse(reply.header, "pull"), "version");
    return pulled;
  }

 private:
  std::int64_t size_, save_every_;
  TemporaryFolder folder_;
  ReservedPort port_;
  std::optional<ShardService> service_;
  std::optional<RpcServer> server_;
};

// The header of an update with rate 1, which subtracts the gradient.
inline Json push_header(int worker, std::int64_t turn, std::int64_t base = 0) {
  Json header = messages::json_of(
      PushedUpdate{.worker = worker, .turn = turn, .version = base, .learning_rate = 1});
  header["run"] = "run";
  return header;
}

}  // namespace troika::test
