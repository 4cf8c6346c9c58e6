#include <troika/base/bytes.h>
#include <troika/base/hash.h>
#include <troika/observe/machine.h>
#include <troika/observe/tensorboard_sink.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <optional>

namespace troika {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Protobuf's wire format: a key (field number and wire type), then the value.
class Message {
 public:
  void varint(int field, std::uint64_t value) {
    key(field, 0);
    raw_varint(value);
  }
  void fixed64(int field, double value) {
    key(field, 1);
    bytes_ += text_of(to_little_endian(value));
  }
  void fixed32(int field, float value) {
    key(field, 5);
    bytes_ += text_of(to_little_endian(value));
  }
  void bytes(int field, std::string_view value) {
    key(field, 2);
    raw_varint(value.size());
    bytes_ += value;
  }
  [[nodiscard]] const std::string& str() const { return bytes_; }

 private:
  void key(int field, int wire_type) {
    raw_varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire_type));
  }
  void raw_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// HistogramProto. Requires some counts.
Message histogram(const ValueCounts& counts) {
  double sum = 0, squares = 0;
  std::string limits, buckets;
  const auto add_bucket = [&](double limit, double count) {
    limits += text_of(to_little_endian(limit));
    buckets += text_of(to_little_endian(count));
  };
  std::optional<std::int64_t> before;
  for (const auto& [value, count] : counts) {
    const auto number = static_cast<double>(value), times = static_cast<double>(count);
    if (before && *before + 1 < value) add_bucket(number - 0.5, 0);
    add_bucket(number + 0.5, times);
    sum += number * times;
    squares += number * number * times;
    before = value;
  }
  Message message;
  message.fixed64(1, static_cast<double>(counts.begin()->first));
  message.fixed64(2, static_cast<double>(counts.rbegin()->first));
  message.fixed64(3, static_cast<double>(total_count(counts)));
  message.fixed64(4, sum);
  message.fixed64(5, squares);
  message.bytes(6, limits);
  message.bytes(7, buckets);
  return message;
}

std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes_of(bytes)), 15) + 0xa282ead8u;
}

std::string tf_record(const Message& event) {
  std::string record(text_of(to_little_endian(std::uint64_t{event.str().size()})));
  record += text_of(to_little_endian(masked_crc(record)));
  record += event.str();
  record += text_of(to_little_endian(masked_crc(event.str())));
  return record;
}

std::filesystem::path new_event_file(const std::filesystem::path& folder) {
  make_folders(folder);
  const std::string stem = "events.out.tfevents." +
                           std::to_string(static_cast<std::int64_t>(wall_seconds())) + "." +
                           host_name() + "." + std::to_string(::getpid()) + ".";
  for (int number = 0;; ++number) {
    std::filesystem::path path = folder / (stem + std::to_string(number));
    if (!std::filesystem::exists(path)) return path;
  }
}

}  // namespace

std::string event_file_version(double wall_time) {
  Message event;
  event.fixed64(1, wall_time);
  event.bytes(3, "brain.Event:2");
  return tf_record(event);
}

std::string event_session_start(double wall_time, std::int64_t step) {
  constexpr std::uint64_t kStart = 1;
  Message log;
  log.varint(1, kStart);
  Message event;
  event.fixed64(1, wall_time);
  event.varint(2, static_cast<std::uint64_t>(step));
  event.bytes(7, log.str());
  return tf_record(event);
}

std::string event_summary(double wall_time, std::int64_t step, std::span<const NamedValue> scalars,
                          std::span<const NamedCounts> histograms) {
  Message summary;
  for (const NamedValue& scalar : scalars) {
    Message value;
    value.bytes(1, scalar.name);
    value.fixed32(2, static_cast<float>(scalar.value));
    summary.bytes(1, value.str());
  }
  for (const NamedCounts& each : histograms) {
    if (each.counts.empty()) continue;
    Message value;
    value.bytes(1, each.name);
    value.bytes(5, histogram(each.counts).str());
    summary.bytes(1, value.str());
  }
  Message event;
  event.fixed64(1, wall_time);
  event.varint(2, static_cast<std::uint64_t>(step));
  event.bytes(5, summary.str());
  return tf_record(event);
}

TensorBoardSink::TensorBoardSink(const std::filesystem::path& folder, std::int64_t done)
    : file_(new_event_file(folder), AppendFile::Mode::kTruncate) {
  file_.append(event_file_version(wall_seconds()));
  if (done > 0) file_.append(event_session_start(wall_seconds(), done + 1));
}

void TensorBoardSink::record(const StepMetrics& metrics) {
  std::vector<NamedValue> scalars = {
      {"train/loss", metrics.loss},
      {"train/grad_norm", metrics.grad_norm},
      {"train/learning_rate", metrics.learning_rate},
      {"train/tokens", static_cast<double>(metrics.tokens)},
      {"train/tokens_per_second", metrics.tokens_per_second},
      {"train/step_seconds", metrics.step_seconds},
      {"train/data_wait_seconds", metrics.data_wait_seconds},
  };
  if (metrics.evaluation) {
    scalars.push_back({"held_out/loss", metrics.evaluation->held_out_loss});
    if (const auto bits = metrics.evaluation->held_out_bits_per_byte) {
      scalars.push_back({"held_out/bits_per_byte", *bits});
    }
    for (const NamedValue& each : metrics.evaluation->metrics) {
      scalars.push_back({"held_out/" + each.name, each.value});
    }
  }
  for (const NamedValue& extra : metrics.extras) {
    scalars.push_back({"train/" + extra.name, extra.value});
  }
  std::vector<NamedCounts> histograms = metrics.counts;
  for (NamedCounts& each : histograms) each.name.insert(0, "train/");
  file_.append(event_summary(wall_seconds(), metrics.step, scalars, histograms));
}

}  // namespace troika
