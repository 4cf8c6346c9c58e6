#include <gmock/gmock.h>
#include <signal.h>
#include <support/temporary_folder.h>
#include <sys/wait.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/observe/recorder.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <thread>

namespace troika {
namespace {

using State = RecordedOperation::State;
using testing::HasSubstr;

TEST(Recorder, IsReadWhileItIsWritten) {
  const TemporaryFolder folder;
  const auto path = recorder_path(folder.path(), 3);
  EXPECT_EQ(path.filename(), "flight-rank-3.bin");
  const auto recorder = Recorder::create(path, 3, "node7");
  EXPECT_TRUE(read_recorder(path).operations.empty());

  EXPECT_EQ(recorder->begin({"all_reduce", "data", "gradients of layers.3", 4096}), 1u);
  EXPECT_EQ(recorder->begin({"barrier", "data", "step", 0}), 2u);
  EXPECT_EQ(recorder->begin({"broadcast", "tensor", "weights", 8}), 3u);
  recorder->end(1);
  recorder->fail(2);

  const Recording recording = read_recorder(path);
  EXPECT_EQ(recording.rank, 3);
  EXPECT_EQ(recording.process_id, ::getpid());
  EXPECT_EQ(recording.host, "node7");
  EXPECT_EQ(recording.count, 3u);
  EXPECT_GT(recording.created, 1'700'000'000'000'000'000);
  ASSERT_EQ(recording.operations.size(), 3u);
  const RecordedOperation& first = recording.operations[0];
  EXPECT_EQ(first.sequence, 1u);
  EXPECT_EQ(first.operation, "all_reduce");
  EXPECT_EQ(first.axis, "data");
  EXPECT_EQ(first.label, "gradients of layers.3");
  EXPECT_EQ(first.bytes, 4096u);
  EXPECT_EQ(first.state, State::kFinished);
  EXPECT_GE(first.started, recording.created);
  EXPECT_GE(first.finished, first.started);
  EXPECT_EQ(recording.operations[1].state, State::kFailed);
  EXPECT_EQ(recording.operations[2].state, State::kRunning);
  EXPECT_EQ(recording.operations[2].finished, 0);
}

// An engine that says itself when an operation is under way has it written then, and once.
TEST(Recorder, AnEntryIsWrittenWhenItsEngineSaysSo) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder / "f", 0, "h");
  const OperationFacts facts{"all_reduce", "data", "loss", 8};
  OperationEntry entry(recorder.get(), facts);
  const OperationRecord record(recorder.get(), entry.sequence(), facts);
  EXPECT_EQ(recorder->count(), 1u);
  EXPECT_TRUE(read_recorder(folder / "f").operations.empty());

  entry.write();
  record.sent(5);
  record.step();
  entry.write();
  recorder->end(entry.sequence());
  const Recording recording = read_recorder(folder / "f");
  ASSERT_EQ(recording.operations.size(), 1u);
  EXPECT_EQ(recording.operations[0].label, "loss");
  EXPECT_EQ(recording.operations[0].sent, 5u);
  EXPECT_EQ(recording.operations[0].steps, 1u);
  EXPECT_EQ(recording.operations[0].state, State::kFinished);
  OperationEntry(nullptr, facts).write();  // without a recorder nothing happens
}

TEST(Recorder, FormatIsAsDocumented) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder / "f", 2, "h", 4);
  const auto number =
      recorder->begin({"send", "pipeline", "activation", 77, 11, "fp32", 5, 6, 7, 9});
  recorder->add_traffic(number, 40, 1);
  recorder->add_traffic(number, 37, 1);
  const std::string bytes = read_file(folder / "f", 10000);
  ASSERT_EQ(bytes.size(), 256u + 4 * 192);
  EXPECT_EQ(bytes.substr(0, 8), "TRKFLT01");
  EXPECT_EQ(bytes.substr(8, 20), std::string("\3\0\0\0\0\1\0\0\xC0\0\0\0\4\0\0\0\2\0\0\0", 20));
  EXPECT_EQ(bytes.substr(32, 8), std::string("\1\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(48, 2), std::string("h\0", 2));
  EXPECT_EQ(bytes.substr(256, 16), std::string("\1\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0", 16));
  const std::map<int, char> numbers = {{32, 77}, {40, 77}, {48, 5}, {64, 7}, {72, 11}};
  for (const auto& [offset, value] : numbers) {
    EXPECT_EQ(bytes.substr(256 + static_cast<std::size_t>(offset), 8),
              std::string(1, value) + std::string(7, '\0'))
        << offset;
  }
  EXPECT_EQ(bytes.substr(256 + 56, 8), std::string("\6\0\0\0\11\0\0\0", 8));
  EXPECT_EQ(bytes.substr(256 + 80, 5), std::string("fp32\0", 5));
  EXPECT_EQ(bytes.substr(256 + 88, 5), std::string("send\0", 5));
  EXPECT_EQ(bytes.substr(256 + 104, 9), std::string("pipeline\0", 9));
  EXPECT_EQ(bytes.substr(256 + 128, 11), std::string("activation\0", 11));

  const RecordedOperation read = read_recorder(folder / "f").operations.at(0);
  EXPECT_EQ(read.sent, 77u);
  EXPECT_EQ(read.steps, 2u);
  EXPECT_EQ(read.place, 5u);
  EXPECT_EQ(read.generation, 6u);
  EXPECT_EQ(read.signature, 7u);
  EXPECT_EQ(read.group, 9u);
  EXPECT_EQ(read.elements, 11);
  EXPECT_EQ(read.dtype, "fp32");
  EXPECT_EQ(name_of(read), "send 'activation'");
}

TEST(Recorder, KeepsTheLastOnes) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder / "f", 0, "h", 4);
  for (int i = 1; i <= 10; ++i) recorder->begin({"op", "data", std::to_string(i), 0});
  recorder->end(2);  // long overwritten: must not end number 10 or 6
  recorder->end(9);
  const Recording recording = read_recorder(folder / "f");
  EXPECT_EQ(recording.count, 10u);
  std::vector<std::string> labels;
  for (const auto& operation : recording.operations) {
    labels.push_back(operation.label);
    EXPECT_EQ(operation.state, operation.sequence == 9 ? State::kFinished : State::kRunning);
  }
  EXPECT_THAT(labels, testing::ElementsAre("7", "8", "9", "10"));
}

TEST(Recorder, CutsTextsThatAreTooLong) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder / "f", 0, std::string(200, 'h'));
  recorder->begin({std::string(100, 'o'), std::string(100, 'a'), std::string(100, 'l') + "x", 0});
  recorder->begin({"op\x1b[2J", "data", "a\nb", 0});
  const Recording recording = read_recorder(folder / "f");
  EXPECT_EQ(recording.host, std::string(64, 'h'));
  EXPECT_EQ(recording.operations[0].operation, std::string(16, 'o'));
  EXPECT_EQ(recording.operations[0].axis, std::string(24, 'a'));
  EXPECT_EQ(recording.operations[0].label, std::string(64, 'l'));
  EXPECT_EQ(recording.operations[1].operation, "op?[2J");
  EXPECT_EQ(recording.operations[1].label, "a?b");
}

TEST(Recorder, ThreadsMayRecordAtOnce) {
  constexpr int kThreads = 4, kEach = 2000;
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder / "f", 0, "h", kThreads * kEach);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&recorder, i] {
      for (int j = 0; j < kEach; ++j) {
        recorder->end(recorder->begin({"op", "data", std::to_string(i), static_cast<unsigned>(j)}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Recording recording = read_recorder(folder / "f");
  ASSERT_EQ(recording.operations.size(), std::size_t{kThreads * kEach});
  std::map<std::string, std::uint64_t> next;  // each thread's are all there, in its order
  for (const RecordedOperation& operation : recording.operations) {
    EXPECT_EQ(operation.bytes, next[operation.label]++);
    EXPECT_EQ(operation.state, State::kFinished);
  }
}

TEST(Recorder, OutlivesItsWriter) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto recorder = Recorder::create(folder / "f", 1, "h");
    recorder->begin({"all_reduce", "data", "bucket 7", 1 << 22});
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const Recording recording = read_recorder(folder / "f");
  EXPECT_EQ(recording.process_id, child);
  ASSERT_EQ(recording.operations.size(), 1u);
  EXPECT_EQ(describe_last(recording, recording.operations[0].started + 12'300'000'000),
            "in all_reduce 'bucket 7' (axis data, 4.0 MiB) for 12.3 s");
}

TEST(Recorder, InMemoryCounts) {
  const auto recorder = Recorder::none();
  for (int i = 0; i < 1000; ++i) recorder->end(recorder->begin({"op", "data", "label", 1}));
  EXPECT_EQ(recorder->count(), 1000u);
}

TEST(Recorder, ErrorsNameTheFile) {
  const TemporaryFolder folder;
  EXPECT_THROW(static_cast<void>(Recorder::create(folder / "no/such/f", 0, "h")), StorageError);
  EXPECT_THROW(static_cast<void>(Recorder::create(folder / "f", 0, "h", 0)), UsageError);
  EXPECT_THROW(static_cast<void>(Recorder::create(folder / "f", 0, "h", 65537)), UsageError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DescribeLast, SaysWhatTheRankDidLast) {
  Recording recording;
  EXPECT_EQ(describe_last(recording, 0), "began no operation");
  RecordedOperation operation;
  operation.sequence = 1;
  operation.operation = "barrier";
  operation.axis = "data";
  operation.label = "start";
  operation.started = 1'000'000'000;
  operation.finished = 2'000'000'000;
  operation.state = State::kFinished;
  recording.operations.push_back(operation);
  EXPECT_EQ(describe_last(recording, 4'500'000'000),
            "finished barrier 'start' (axis data) 2.5 s ago and began nothing since");
  recording.operations[0].state = State::kFailed;
  EXPECT_THAT(describe_last(recording, 0), HasSubstr("failed in barrier"));  // also in the future
}

TEST(ReadRecorder, RefusesOtherFiles) {
  const TemporaryFolder folder;
  static_cast<void>(Recorder::create(folder / "good", 0, "h", 4));
  const std::string good = read_file(folder / "good", 10000);
  const auto refuses = [&](std::string bytes) {
    write_file_atomically(folder / "bad", bytes);
    EXPECT_THROW(static_cast<void>(read_recorder(folder / "bad")), DataError);
  };
  EXPECT_THROW(static_cast<void>(read_recorder(folder / "missing")), DataError);
  refuses("");
  refuses("TRKFLT01");
  refuses(good.substr(0, good.size() - 1));
  refuses(good + "x");
  for (const std::size_t offset : {0, 8, 12, 16, 20, 23}) {  // magic, version, sizes, capacity
    std::string bad = good;
    bad[offset] = static_cast<char>(bad[offset] ^ 0x40);
    refuses(bad);
  }
  std::string none = good;
  std::memset(none.data() + 20, 0, 4);
  refuses(none);
}

TEST(ReadRecorder, LeavesOutRecordsThatMakeNoSense) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder / "good", 0, "h", 4);
  recorder->begin({"op", "data", "one", 0});
  recorder->begin({"op", "data", "two", 0});
  const std::string good = read_file(folder / "good", 10000);
  const auto labels_after = [&](std::size_t offset, char value) {
    std::string bytes = good;
    bytes[offset] = value;
    write_file_atomically(folder / "bad", bytes);
    std::string labels;
    for (const auto& operation : read_recorder(folder / "bad").operations)
      labels += operation.label;
    return labels;
  };
  EXPECT_EQ(labels_after(256, 1), "onetwo");
  EXPECT_EQ(labels_after(256, 0), "two");      // being written
  EXPECT_EQ(labels_after(256, 5), "two");      // more than were begun
  EXPECT_EQ(labels_after(256, 2), "two");      // another record's place
  EXPECT_EQ(labels_after(256 + 8, 9), "two");  // no such state
}

// What a reader copies while the writer puts operation 5 in the place of operation 1.
TEST(ReadRecorder, LeavesOutARecordThatIsBeingOverwritten) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder / "f", 0, "h", 4);
  for (const char* label : {"1", "2", "3", "4"}) recorder->begin({"op", "data", label, 0});
  const std::string before = read_file(folder / "f", 10000);
  recorder->begin({"op", "data", "5", 0});
  const std::string after = read_file(folder / "f", 10000);
  const auto labels_of = [](const std::string& first, const std::string& second) {
    std::string labels;
    for (const auto& operation : decode_recording(first, second, "f").operations) {
      labels += operation.label;
    }
    return labels;
  };
  EXPECT_EQ(labels_of(before, before), "1234");
  EXPECT_EQ(labels_of(after, after), "2345");

  std::string torn = before;  // the sequence of operation 1, the rest of operation 5
  torn.replace(256 + 8, 184, after, 256 + 8, 184);
  EXPECT_EQ(labels_of(torn, after), "234");
  std::string writing = after;
  writing.replace(256, 8, 8, '\0');
  EXPECT_EQ(labels_of(torn, writing), "234");
  // Begun between the two copies, and so not in the first one's count.
  std::string early = after;
  early.replace(32, 8, before, 32, 8);
  EXPECT_EQ(labels_of(early, after), "2345");
}

TEST(ReadRecorder, RefusesCopiesOfDifferentFiles) {
  const TemporaryFolder folder;
  static_cast<void>(Recorder::create(folder / "a", 0, "h", 4));
  static_cast<void>(Recorder::create(folder / "b", 0, "h", 5));
  const std::string first = read_file(folder / "a", 10000), second = read_file(folder / "b", 10000);
  EXPECT_THROW(static_cast<void>(decode_recording(first, second, "f")), DataError);
}

// Seeded noise in the place of any bytes must end in an error or a reading, nothing else.
TEST(ReadRecorder, SurvivesNoise) {
  const TemporaryFolder folder;
  const auto recorder = Recorder::create(folder / "good", 0, "h", 4);
  for (int i = 0; i < 6; ++i) recorder->begin({"op", "data", "label", 0});
  const std::string good = read_file(folder / "good", 10000);
  const RandomStream random(stream_key(1, "noise"));
  std::uint64_t index = 0;
  int read = 0, refused = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::string bytes = good;
    for (int change = 0; change < 8; ++change) {
      bytes[random.below(index, bytes.size())] = static_cast<char>(random.bits(index + 1));
      index += 2;
    }
    std::ofstream(folder / "bad", std::ios::binary) << bytes;
    try {
      const Recording recording = read_recorder(folder / "bad");
      EXPECT_LE(recording.operations.size(), 4u);
      EXPECT_FALSE(describe_last(recording, 0).empty());
      ++read;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace troika
