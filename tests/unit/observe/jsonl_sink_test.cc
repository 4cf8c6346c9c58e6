#include <gmock/gmock.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/observe/jsonl_sink.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

StepMetrics some_metrics() {
  StepMetrics metrics;
  metrics.step = 7;
  metrics.loss = 0.1;
  metrics.grad_norm = 2;
  metrics.learning_rate = 1e-3;
  metrics.tokens = 9'007'199'254'740'993;  // 2^53 + 1: no double
  metrics.tokens_per_second = 1e30;
  metrics.step_seconds = 1.0 / 3;
  metrics.data_wait_seconds = 5e-324;
  return metrics;
}

TEST(JsonlSink, WritesTheKeysInOrderWithSeventeenDigits) {
  EXPECT_EQ(to_json_line(some_metrics()),
            "{\"step\": 7, \"loss\": 0.10000000000000001, \"grad_norm\": 2.0, "
            "\"learning_rate\": 0.001, \"tokens\": 9007199254740993, "
            "\"tokens_per_second\": 1e+30, \"step_seconds\": 0.33333333333333331, "
            "\"data_wait_seconds\": 4.9406564584124654e-324}\n");
}

TEST(JsonlSink, ReadsBackToTheSameBits) {
  StepMetrics metrics = some_metrics();
  for (const double value : {1.0 / 7, 123456.789, 1e-300, -0.0, 1.7976931348623157e308, 2e22}) {
    metrics.loss = value;
    const auto line = nlohmann::json::parse(to_json_line(metrics));
    EXPECT_TRUE(line["loss"].is_number_float());
    EXPECT_EQ(line["loss"].get<double>(), value);
  }
}

TEST(JsonlSink, EvaluationAndExtrasFollow) {
  StepMetrics metrics = some_metrics();
  metrics.evaluation = Evaluation{1.5, 2.25};
  metrics.extras = {{"mfu", 0.5}, {"odd \"name\"\n", 1}};
  const auto line = nlohmann::ordered_json::parse(to_json_line(metrics));
  std::vector<std::string> keys;
  for (const auto& [key, value] : line.items()) keys.push_back(key);
  EXPECT_THAT(keys, testing::ElementsAre("step", "loss", "grad_norm", "learning_rate", "tokens",
                                         "tokens_per_second", "step_seconds", "data_wait_seconds",
                                         "held_out_loss", "held_out_bits_per_byte", "mfu",
                                         "odd \"name\"\n"));
  EXPECT_EQ(line["held_out_loss"], 1.5);
  EXPECT_EQ(line["held_out_bits_per_byte"], 2.25);
  metrics.evaluation = Evaluation{1.5};  // no text
  EXPECT_FALSE(nlohmann::json::parse(to_json_line(metrics)).contains("held_out_bits_per_byte"));
  EXPECT_EQ(line["mfu"], 0.5);
}

TEST(JsonlSink, CountsAreAnObjectByValue) {
  StepMetrics metrics = some_metrics();
  metrics.extras = {{"updates", 4}};
  metrics.counts = {{"staleness", "update", {{0, 3}, {12, 1}}}, {"none", "update"}};
  const std::string line = to_json_line(metrics);
  EXPECT_THAT(line, testing::EndsWith("\"updates\": 4.0, \"staleness\": {\"0\": 3, \"12\": 1}, "
                                      "\"none\": {}}\n"));
  EXPECT_EQ(nlohmann::json::parse(line)["staleness"]["12"], 1);
}

TEST(JsonlSink, WhatIsNotFiniteIsNull) {
  StepMetrics metrics = some_metrics();
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  const auto line = nlohmann::json::parse(to_json_line(metrics));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
}

TEST(JsonlSink, OneLineAStepAndGoesOn) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  StepMetrics metrics = some_metrics();
  {
    JsonlSink sink(path);
    metrics.step = 1;
    sink.record(metrics);
    EXPECT_EQ(read_file(path, 10000), to_json_line(metrics));  // at once, not at the end
  }
  const std::string first = to_json_line(metrics);
  JsonlSink sink(path, AppendFile::Mode::kKeepLines);
  metrics.step = 2;
  sink.record(metrics);
  sink.flush();
  EXPECT_EQ(read_file(path, 10000), first + to_json_line(metrics));
}

TEST(JsonlSink, FullDiskIsAStorageError) {
  JsonlSink sink("/dev/full");
  EXPECT_THROW(sink.record(some_metrics()), StorageError);
}

}  // namespace
}  // namespace troika
