#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/observe/prometheus_sink.h>

#include <limits>

namespace troika {
namespace {

using testing::HasSubstr;
using testing::Not;

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// The whole answer to a GET, headers included; "" if there is no server.
std::string http_get(int port, const std::string& path) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval deadline{10, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline));
  const sockaddr_in address = loopback(port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return "";
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), std::ssize(request));
  std::string answer;
  char block[4096];
  for (ssize_t count; (count = ::recv(fd.get(), block, sizeof(block), 0)) > 0;) {
    answer.append(block, static_cast<std::size_t>(count));
  }
  return answer;
}

PrometheusOptions local_options() {
  return {.port = 0, .run = "a \"run\"", .rank = 3, .address = "127.0.0.1"};
}

StepMetrics scraped_metrics() {
  StepMetrics metrics;
  metrics.step = 5;
  metrics.loss = 2.5;
  metrics.tokens = 1000;
  metrics.tokens_per_second = 64;
  metrics.extras = {{"memory_bytes", 4096}};
  return metrics;
}

constexpr const char* kLabels = "{rank=\"3\",run=\"a \\\"run\\\"\"}";

TEST(PrometheusSink, ServesTheLastStep) {
  PrometheusSink sink(local_options());
  ASSERT_GT(sink.port(), 0);
  EXPECT_THAT(http_get(sink.port(), "/metrics"), Not(HasSubstr("troika_loss")));

  sink.record(scraped_metrics());
  const std::string answer = http_get(sink.port(), "/metrics");
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("# TYPE troika_loss gauge"));
  EXPECT_THAT(answer, HasSubstr("# TYPE troika_tokens_total counter"));
  EXPECT_THAT(answer, HasSubstr("troika_step" + std::string(kLabels) + " 5\n"));
  EXPECT_THAT(answer, HasSubstr("troika_loss" + std::string(kLabels) + " 2.5\n"));
  EXPECT_THAT(answer, HasSubstr("troika_tokens_total" + std::string(kLabels) + " 1000\n"));
  EXPECT_THAT(answer, HasSubstr("troika_memory_bytes" + std::string(kLabels) + " 4096\n"));
  EXPECT_THAT(answer, Not(HasSubstr("troika_held_out_loss")));

  StepMetrics next = scraped_metrics();
  next.tokens = 1500;
  next.loss = std::numeric_limits<double>::quiet_NaN();
  next.evaluation = Evaluation{1.25, 1.5};
  sink.record(next);
  const std::string later = http_get(sink.port(), "/metrics");
  EXPECT_THAT(later, HasSubstr("troika_tokens_total" + std::string(kLabels) + " 1500\n"));
  EXPECT_THAT(later, HasSubstr("troika_loss" + std::string(kLabels) + " Nan\n"));
  EXPECT_THAT(later, HasSubstr("troika_held_out_loss" + std::string(kLabels) + " 1.25\n"));
}

TEST(PrometheusSink, ServesNothingElse) {
  PrometheusSink sink(local_options());
  sink.record(scraped_metrics());
  for (const char* path :
       {"/", "/etc/passwd", "/../../../../etc/passwd", "/metric", "//etc/hostname"}) {
    const std::string answer = http_get(sink.port(), path);
    EXPECT_THAT(answer, Not(HasSubstr("200 OK"))) << path;
    EXPECT_THAT(answer, Not(HasSubstr("root:"))) << path;
  }
}

TEST(PrometheusSink, StopsServing) {
  int port = 0;
  {
    const PrometheusSink sink(local_options());
    port = sink.port();
  }
  EXPECT_EQ(http_get(port, "/metrics"), "");
}

TEST(PrometheusSink, PortInUseIsNamed) {
  const UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  ASSERT_EQ(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  PrometheusOptions options = local_options();
  options.port = ntohs(address.sin_port);
  for (const char* interface : {"127.0.0.1", "0.0.0.0"}) {
    options.address = interface;
    testing::internal::CaptureStderr();
    try {
      const PrometheusSink sink(options);
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()), "observe.prometheus_port: port " +
                                               std::to_string(options.port) +
                                               " is in use on this machine");
      EXPECT_THAT(error.hint(), HasSubstr("--set observe.prometheus_port"));
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  }
}

TEST(PrometheusSink, RefusesWhatIsNoPortOrAddress) {
  PrometheusOptions options = local_options();
  options.port = 65536;
  EXPECT_THROW(PrometheusSink{options}, UsageError);
  options.port = -1;
  EXPECT_THROW(PrometheusSink{options}, UsageError);
  options.port = 0;
  options.address = "nowhere";
  EXPECT_THROW(PrometheusSink{options}, UsageError);
  options.address = "203.0.113.7";  // documentation only: no interface has it
  EXPECT_THROW(PrometheusSink{options}, UsageError);
}

}  // namespace
}  // namespace troika
