#include <arpa/inet.h>
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/observe/prometheus_sink.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>

namespace troika {
namespace {

// The reason why `address` cannot be listened on, asked of the kernel, because the HTTP server
// keeps it to itself. 0 if it can be now.
int errno_of_listening(const sockaddr_in& address) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (!fd.valid()) return errno;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0) return errno;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return errno;
  }
  return ::listen(fd.get(), 1) == 0 ? 0 : errno;
}

sockaddr_in socket_address(const PrometheusOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    throw UsageError("observe.prometheus_port: " + std::to_string(options.port) + " is no port",
                     "write a number from 1 to 65535, or 0 to switch the endpoint off");
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(options.port));
  if (::inet_pton(AF_INET, options.address.c_str(), &address.sin_addr) != 1) {
    throw UsageError(
        "observe.prometheus_address: " + quote(options.address) + " is no IPv4 address",
        "write 0.0.0.0 for all interfaces, 127.0.0.1 for this machine only");
  }
  return address;
}

[[noreturn]] void throw_not_listening(const PrometheusOptions& options, int error_number,
                                      const char* otherwise) {
  const std::string port = std::to_string(options.port);
  const std::string hint =
      "choose another with --set observe.prometheus_port=PORT, or 0 to switch the endpoint off";
  if (error_number == EADDRINUSE) {
    throw UsageError("observe.prometheus_port: port " + port + " is in use on this machine", hint);
  }
  throw UsageError(
      "observe.prometheus_port: cannot listen on " + options.address + ":" + port + ": " +
          (error_number != 0 ? std::generic_category().message(error_number) : otherwise),
      error_number == EACCES ? "ports below 1024 need privileges: " + hint : hint);
}

std::unique_ptr<prometheus::Exposer> listen(const PrometheusOptions& options) {
  const sockaddr_in address = socket_address(options);
  try {
    return std::make_unique<prometheus::Exposer>(options.address + ":" +
                                                 std::to_string(options.port));
  } catch (const std::exception& error) {
    throw_not_listening(options, errno_of_listening(address), error.what());
  }
}

// Letters, digits and underscores are what a metric's name may hold.
std::string metric_name(std::string_view name) {
  std::string text = "troika_";
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    text += plain ? c : '_';
  }
  return text;
}

}  // namespace

struct PrometheusSink::Endpoint {
  explicit Endpoint(const PrometheusOptions& options)
      : labels{{"run", options.run}, {"rank", std::to_string(options.rank)}},
        exposer(listen(options)) {
    exposer->RegisterCollectable(registry);
  }

  void set(std::string_view name, double value, const char* help = "") {
    prometheus::Gauge*& gauge = gauges[metric_name(name)];
    if (gauge == nullptr) {
      gauge = &prometheus::BuildGauge()
                   .Name(metric_name(name))
                   .Help(help)
                   .Register(*registry)
                   .Add(labels);
    }
    gauge->Set(value);
  }

  void count_tokens(std::int64_t total) {
    if (tokens == nullptr) {
      tokens = &prometheus::BuildCounter()
                    .Name("troika_tokens_total")
                    .Help("Tokens trained on since the start of the run")
                    .Register(*registry)
                    .Add(labels);
    }
    tokens->Increment(std::max(0.0, static_cast<double>(total) - tokens->Value()));
  }

  prometheus::Labels labels;
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::map<std::string, prometheus::Gauge*> gauges;  // owned by the registry
  prometheus::Counter* tokens = nullptr;
  std::unique_ptr<prometheus::Exposer> exposer;  // last, so that it stops serving first
};

PrometheusSink::PrometheusSink(const PrometheusOptions& options)
    : endpoint_(std::make_unique<Endpoint>(options)) {}

PrometheusSink::~PrometheusSink() = default;

void PrometheusSink::record(const StepMetrics& metrics) {
  Endpoint& endpoint = *endpoint_;
  endpoint.set("step", static_cast<double>(metrics.step), "Optimiser steps done");
  endpoint.set("loss", metrics.loss, "Mean loss per valid token of the last step");
  endpoint.set("grad_norm", metrics.grad_norm, "Norm of the gradient before clipping");
  endpoint.set("learning_rate", metrics.learning_rate, "Learning rate of the last step");
  endpoint.set("tokens_per_second", metrics.tokens_per_second, "Tokens a second in the last step");
  endpoint.set("step_seconds", metrics.step_seconds, "Seconds the last step took");
  endpoint.set("data_wait_seconds", metrics.data_wait_seconds,
               "Seconds the last step waited for data");
  endpoint.count_tokens(metrics.tokens);
  if (metrics.evaluation) {
    endpoint.set("held_out_loss", metrics.evaluation->held_out_loss,
                 "Mean loss per valid token of the held-out split");
    if (const auto bits = metrics.evaluation->held_out_bits_per_byte) {
      endpoint.set("held_out_bits_per_byte", *bits, "Bits per byte of the held-out split");
    }
    for (const NamedValue& each : metrics.evaluation->metrics) {
      endpoint.set("held_out_" + each.name, each.value);
    }
  }
  for (const NamedValue& extra : metrics.extras) endpoint.set(extra.name, extra.value);
}

int PrometheusSink::port() const {
  return endpoint_->exposer->GetListeningPorts().at(0);
}

}  // namespace troika
