#include <gmock/gmock.h>
#include <support/temporary_folder.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/observe/tensorboard_sink.h>

#include <map>
#include <optional>

namespace troika {
namespace {

struct Histogram {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, buckets;
};

struct Event {
  double wall_time = 0;
  std::uint64_t step = 0;
  std::string file_version;
  std::map<std::string, float> scalars;
  std::map<std::string, Histogram> histograms;
};

std::uint64_t read_varint(ByteReader& reader) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = reader.read<std::uint8_t>();
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
}

// Calls `visit(field, reader, length)` for each field; `length` is 0 unless it is a string.
template <typename Visit>
void for_each_field(ByteReader reader, const Visit& visit) {
  while (reader.remaining() > 0) {
    const std::uint64_t key = read_varint(reader);
    visit(key >> 3, reader, (key & 7) == 2 ? read_varint(reader) : 0);
  }
}

std::vector<double> read_doubles(ByteReader reader) {
  std::vector<double> numbers;
  while (reader.remaining() > 0) numbers.push_back(reader.read<double>());
  return numbers;
}

Histogram read_histogram(ByteReader reader) {
  Histogram histogram;
  double* const numbers[] = {&histogram.min, &histogram.max, &histogram.num, &histogram.sum,
                             &histogram.sum_squares};
  for_each_field(reader, [&](std::uint64_t field, ByteReader& r, std::uint64_t length) {
    if (field <= 5) *numbers[field - 1] = r.read<double>();
    if (field == 6) histogram.limits = read_doubles(r.sub_reader(length));
    if (field == 7) histogram.buckets = read_doubles(r.sub_reader(length));
  });
  return histogram;
}

void read_value(ByteReader reader, Event& event) {
  std::string tag;
  float number = 0;
  std::optional<Histogram> histogram;
  for_each_field(reader, [&](std::uint64_t field, ByteReader& r, std::uint64_t length) {
    if (field == 1) tag = text_of(r.take(length));
    if (field == 2) number = r.read<float>();
    if (field == 5) histogram = read_histogram(r.sub_reader(length));
  });
  if (histogram) {
    event.histograms[tag] = *histogram;
  } else {
    event.scalars[tag] = number;
  }
}

Event read_event(ByteReader reader) {
  Event event;
  for_each_field(reader, [&](std::uint64_t field, ByteReader& r, std::uint64_t length) {
    if (field == 1) event.wall_time = r.read<double>();
    if (field == 2) event.step = read_varint(r);
    if (field == 3) event.file_version = text_of(r.take(length));
    if (field != 5) return;
    for_each_field(r.sub_reader(length), [&](std::uint64_t, ByteReader& s, std::uint64_t size) {
      read_value(s.sub_reader(size), event);
    });
  });
  return event;
}

std::uint32_t unmasked(std::uint32_t masked) {
  return std::rotl(masked - 0xa282ead8u, 15);
}

std::vector<Event> read_events(const std::string& file) {
  std::vector<Event> events;
  ByteReader reader(bytes_of(file), "events");
  while (reader.remaining() > 0) {
    const auto length_bytes = reader.take(8);
    const auto length = from_little_endian<std::uint64_t>(length_bytes.first<8>());
    EXPECT_EQ(unmasked(reader.read<std::uint32_t>()), crc32c(length_bytes));
    const auto data = reader.take(length);
    EXPECT_EQ(unmasked(reader.read<std::uint32_t>()), crc32c(data));
    events.push_back(read_event(ByteReader(data, "event")));
  }
  return events;
}

TEST(TensorBoardSink, FirstRecordIsByteForByte) {
  // Length 24, its checksum, the message, its checksum. The message: wall_time = 1.0, file_version.
  const std::string record = event_file_version(1.0);
  ASSERT_EQ(record.size(), 8 + 4 + 24 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));
  // As written by TensorFlow for any first record of 24 bytes.
  EXPECT_EQ(record.substr(8, 4), "\xa3\x7f\x4b\x22");
  EXPECT_EQ(record.substr(12, 24),
            std::string("\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d", 11) + "brain.Event:2");
}

TEST(TensorBoardSink, WritesWhatAReaderFinds) {
  const TemporaryFolder folder;
  TensorBoardSink sink(folder / "tensorboard");
  StepMetrics metrics;
  metrics.step = 300;  // two bytes of varint
  metrics.loss = 1.5;
  metrics.tokens = 1 << 20;
  metrics.extras = {{"mfu", 0.25}};
  sink.record(metrics);
  metrics.step = 301;
  metrics.evaluation = Evaluation{2.5, 3.5};
  sink.record(metrics);
  sink.flush();

  EXPECT_THAT(sink.path().filename().string(), testing::StartsWith("events.out.tfevents."));
  const std::vector<Event> events = read_events(read_file(sink.path(), 100000));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.7e9);
  EXPECT_EQ(events[1].step, 300u);
  EXPECT_EQ(events[1].scalars.size(), 8u);
  EXPECT_EQ(events[1].scalars.at("train/loss"), 1.5f);
  EXPECT_EQ(events[1].scalars.at("train/tokens"), 1048576.0f);
  EXPECT_EQ(events[1].scalars.at("train/mfu"), 0.25f);
  EXPECT_EQ(events[2].step, 301u);
  EXPECT_EQ(events[2].scalars.at("held_out/loss"), 2.5f);
  EXPECT_EQ(events[2].scalars.at("held_out/bits_per_byte"), 3.5f);
}

TEST(TensorBoardSink, CountsAreAHistogramWithABucketForEachNumber) {
  const TemporaryFolder folder;
  TensorBoardSink sink(folder.path());
  StepMetrics metrics;
  metrics.counts = {{"staleness", "update", {{0, 3}, {1, 2}, {4, 1}}}};
  sink.record(metrics);
  metrics.counts = {{"staleness", "update"}};  // a step without updates
  sink.record(metrics);
  sink.flush();
  const std::vector<Event> events = read_events(read_file(sink.path(), 100000));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].scalars.size(), 7u);
  const Histogram found = events[1].histograms.at("train/staleness");
  EXPECT_EQ(found.min, 0);
  EXPECT_EQ(found.max, 4);
  EXPECT_EQ(found.num, 6);
  EXPECT_EQ(found.sum, 6);
  EXPECT_EQ(found.sum_squares, 18);
  EXPECT_THAT(found.limits, testing::ElementsAre(0.5, 1.5, 3.5, 4.5));
  EXPECT_THAT(found.buckets, testing::ElementsAre(3, 2, 0, 1));
  EXPECT_TRUE(events[2].histograms.empty());
}

TEST(TensorBoardSink, EachHasItsOwnFile) {
  const TemporaryFolder folder;
  const TensorBoardSink first(folder.path()), second(folder.path());
  EXPECT_NE(first.path(), second.path());
}

TEST(TensorBoardSink, UnusableFolderIsAStorageError) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "taken", "a file");
  EXPECT_THROW(TensorBoardSink(folder / "taken"), StorageError);
}

}  // namespace
}  // namespace troika
