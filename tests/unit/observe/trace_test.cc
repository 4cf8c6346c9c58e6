#include <gmock/gmock.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/observe/trace.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

namespace troika {
namespace {

using nlohmann::json;

TraceOptions options_of(int rank, TraceWindow window) {
  return {.rank = rank, .host = "node \"7\"", .window = window};
}

// Names of the tracks that hold spans, by the spans' names.
std::map<std::string, std::string> tracks_of(const json& trace) {
  std::map<int, std::string> names;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
  }
  std::map<std::string, std::string> tracks;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") tracks[event["name"]] = names.at(event["tid"]);
  }
  return tracks;
}

std::vector<std::string> span_names(const json& trace) {
  std::vector<std::string> names;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") names.push_back(event["name"]);
  }
  return names;
}

TEST(Trace, KeepsTheStepsOfItsWindow) {
  Trace trace(options_of(0, {2, 3}));
  for (int step = 1; step <= 4; ++step) {
    EXPECT_EQ(trace.complete(), step == 5);
    trace.begin_step(step);
    EXPECT_EQ(trace.on(), step == 2 || step == 3);
    const Span span(&trace, Track::kForward, "forward of " + std::to_string(step));
  }
  EXPECT_TRUE(trace.complete());
  EXPECT_THAT(span_names(json::parse(trace.json())),
              testing::UnorderedElementsAre("step 2", "forward of 2", "step 3", "forward of 3"));
}

TEST(Trace, TheLastStepOfARunEndsTheWindow) {
  Trace trace(options_of(0, {1, 1}));
  trace.begin_step(1);
  EXPECT_FALSE(trace.complete());
  trace.end();
  EXPECT_TRUE(trace.complete());
  EXPECT_FALSE(trace.on());
}

TEST(Trace, OffByDefaultAndWithoutTrace) {
  Trace trace;
  trace.begin_step(1);
  { const Span span(&trace, Track::kData, "nothing"); }
  { const Span span(nullptr, Track::kData, "nothing"); }
  trace.add(Track::kData, "nothing", 1, 2);
  EXPECT_THAT(span_names(json::parse(trace.json())), testing::IsEmpty());
}

TEST(Trace, SpansHaveTrackTimesAndBytes) {
  Trace trace(options_of(5, {1, 1}));
  trace.begin_step(1);
  trace.add(Track::kCommunication, "all_reduce \"bucket\\0\"\n", 1'800'000'000'123'456'789,
            1'800'000'000'123'460'001, 4096);
  const std::string text = trace.json();
  const json parsed = json::parse(text);
  bool found = false;
  for (const json& event : parsed["traceEvents"]) {
    EXPECT_EQ(event["pid"], 5);
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "rank 5 (node \"7\")");
    }
    if (event["ph"] != "X") continue;
    found = true;
    EXPECT_EQ(event["name"], "all_reduce \"bucket\\0\"\n");
    EXPECT_EQ(event["cat"], "communication");
    EXPECT_EQ(event["args"]["bytes"], 4096);
  }
  EXPECT_TRUE(found);
  EXPECT_THAT(text, testing::HasSubstr("\"ts\":1800000000123456.789,\"dur\":3.212"));
}

TEST(Trace, EachKindHasItsTrack) {
  Trace trace(options_of(0, {1, 1}));
  trace.begin_step(1);
  trace.add(Track::kForward, "f", 10, 20);
  trace.add(Track::kBackward, "b", 20, 30);
  trace.add(Track::kCommunication, "c", 25, 35);
  trace.add(Track::kOptimizer, "o", 35, 40);
  trace.add(Track::kData, "d", 0, 40);
  EXPECT_THAT(
      tracks_of(json::parse(trace.json())),
      testing::UnorderedElementsAre(testing::Pair("f", "forward"), testing::Pair("b", "backward"),
                                    testing::Pair("c", "communication"),
                                    testing::Pair("o", "optimiser"), testing::Pair("d", "data")));
}

TEST(Trace, OverlappingSpansGetTracksOfTheirOwn) {
  Trace trace(options_of(0, {1, 1}));
  trace.begin_step(1);
  trace.add(Track::kCommunication, "holds", 0, 100);
  trace.add(Track::kCommunication, "inside", 10, 90);
  trace.add(Track::kCommunication, "crosses", 80, 110);
  trace.add(Track::kCommunication, "crosses again", 85, 120);
  trace.add(Track::kCommunication, "after", 110, 130);
  EXPECT_THAT(tracks_of(json::parse(trace.json())),
              testing::UnorderedElementsAre(testing::Pair("holds", "communication"),
                                            testing::Pair("inside", "communication"),
                                            testing::Pair("crosses", "communication 2"),
                                            testing::Pair("crosses again", "communication 3"),
                                            testing::Pair("after", "communication")));
}

TEST(Trace, CountsFromNineteenSeventy) {
  const Trace trace;
  const auto wall = std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  const std::int64_t first = trace.now();
  EXPECT_LE(std::abs(first - wall), 1'000'000'000);
  EXPECT_LE(first, trace.now());
}

TEST(Trace, ThreadsMayRecordAtOnce) {
  Trace trace(options_of(0, {1, 1}));
  trace.begin_step(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&trace] {
      for (int j = 0; j < 250; ++j) const Span span(&trace, Track::kData, "load");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(span_names(json::parse(trace.json())).size(), 1000u);
}

TEST(Trace, IsBoundedAndSaysSo) {
  TraceOptions options = options_of(0, {1, 1});
  options.max_spans = 2;
  Trace trace(options);
  trace.begin_step(1);
  for (int i = 0; i < 5; ++i) trace.add(Track::kData, "load", i, i + 1);
  const json parsed = json::parse(trace.json());
  EXPECT_EQ(span_names(parsed).size(), 2u);
  EXPECT_EQ(parsed["otherData"]["dropped_spans"], 3);
}

TEST(Trace, FilesOfRanksMerge) {
  const TemporaryFolder folder;
  std::vector<std::filesystem::path> parts;
  for (int rank = 0; rank < 2; ++rank) {
    Trace trace(options_of(rank, {1, 1}));
    trace.begin_step(1);
    trace.add(Track::kForward, "forward", 1000, 2000);
    parts.push_back(trace_path(folder.path(), rank));
    trace.write(parts.back());
  }
  EXPECT_EQ(parts[1].filename(), "trace-rank-1.json");
  merge_traces(parts, folder / "trace.json");
  const json merged = json::parse(read_file(folder / "trace.json", 100000));
  std::vector<int> ranks;
  for (const json& event : merged["traceEvents"]) {
    if (event["ph"] == "X") ranks.push_back(event["pid"]);
  }
  EXPECT_THAT(ranks, testing::ElementsAre(0, 1));
}

TEST(Trace, MergingRefusesWhatIsNoTrace) {
  const TemporaryFolder folder;
  for (const char* content : {"", "{", "[]", "{\"traceEvents\": 3}"}) {
    write_file_atomically(folder / "part", content);
    const std::vector<std::filesystem::path> parts = {folder / "part"};
    EXPECT_THROW(merge_traces(parts, folder / "trace.json"), DataError) << content;
  }
  const std::vector<std::filesystem::path> missing = {folder / "missing"};
  EXPECT_THROW(merge_traces(missing, folder / "trace.json"), DataError);
  EXPECT_FALSE(std::filesystem::exists(folder / "trace.json"));
}

TEST(Trace, UnwritableFileIsAStorageError) {
  const TemporaryFolder folder;
  EXPECT_THROW(Trace().write(folder / "no/such/trace.json"), StorageError);
}

}  // namespace
}  // namespace troika
