// The metrics endpoint http://HOST:PORT/metrics that a Prometheus server scrapes.
//
// It is off unless the recipe gives a port. Then it listens on loopback, unless the recipe gives
// another address: a Prometheus server on another machine needs one that it reaches. It serves
// numbers only, labelled with the name of the run and the rank: no paths, no data, no recipe, no
// host or user name; no file is served.
//
// Metrics, each with the labels run and rank: the gauges troika_step, troika_loss,
// troika_grad_norm, troika_learning_rate, troika_tokens_per_second, troika_step_seconds,
// troika_data_wait_seconds, troika_held_out_loss, troika_held_out_bits_per_byte and troika_<name>
// for each extra; the counter troika_tokens_total. A metric is there from the first step that
// reports it.
#pragma once

#include <troika/observe/metrics.h>

#include <memory>

namespace troika {

struct PrometheusOptions {
  int port = 0;                       // 1 to 65535; 0 takes any free port
  std::string run;                    // label
  int rank = 0;                       // label
  std::string address = "127.0.0.1";  // IPv4 address of the interface
};

// Serves from threads of its own until it is destroyed.
class PrometheusSink : public MetricSink {
 public:
  // Throws UsageError naming the port if it is out of range, in use or not allowed.
  explicit PrometheusSink(const PrometheusOptions& options);
  ~PrometheusSink() override;

  void record(const StepMetrics& metrics) override;
  // Returns the port that it listens on.
  [[nodiscard]] int port() const;

 private:
  struct Endpoint;
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace troika
