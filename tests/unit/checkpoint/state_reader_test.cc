#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/checkpoint/state_reader.h>
#include <troika/checkpoint/state_writer.h>
#include <troika/checkpoint/tensors.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::HasSubstr;

ShardDescriptor shard_of(Slice slice, std::int64_t begin, std::int64_t count) {
  return {{4, 6}, slice, begin, count, count};
}

// Element (i, j) of the matrix is 10 i + j.
at::Tensor whole() {
  return (at::arange(4).view({4, 1}) * 10 + at::arange(6)).to(at::kFloat);
}

StateDict part_of_whole(const ShardDescriptor& shard, at::ScalarType type = at::kFloat) {
  at::Tensor part = at::full({shard.count}, -1, type);
  if (type == at::kFloat) copy_from_whole(shard, whole(), part);
  StateDict state;
  state.add("w", shard, part);
  return state;
}

class StateOfACheckpoint : public testing::Test {
 protected:
  // Writes the parts as so many ranks.
  void write(const std::vector<ShardDescriptor>& parts) const {
    Manifest manifest;
    manifest.step = 3;
    manifest.numbers = {{"step", std::int64_t{3}}};
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      StateWriter writer;
      writer.begin(part_of_whole(parts[rank]), folder_.step_folder(3),
                   std::to_string(rank) + ".safetensors");
      const ShardReport report = writer.wait();
      ASSERT_EQ(report.error, "");
      manifest.tensors.insert(report.tensors.begin(), report.tensors.end());
      manifest.shards.push_back(report.shard);
    }
    folder_.commit(manifest);
  }

  void expect_to_read(const ShardDescriptor& shard) const {
    StateDict state = part_of_whole(shard, at::kDouble);
    StateReader(folder_, 3).read(state);
    const StateDict expected = part_of_whole(shard);
    EXPECT_TRUE(state.tensors()[0].tensor.equal(expected.tensors()[0].tensor.to(at::kDouble)));
    EXPECT_EQ(state.integer("step"), 3);
  }

  TemporaryFolder temporary_;
  CheckpointFolder folder_{temporary_.path() / "checkpoints"};
};

TEST_F(StateOfACheckpoint, GoesFromAnyCutToAnyOther) {
  const std::vector<std::vector<ShardDescriptor>> cuts = {
      {shard_of({0, 0, 4}, 0, 24)},
      {shard_of({0, 0, 4}, 0, 7), shard_of({0, 0, 4}, 7, 17)},
      {shard_of({0, 0, 1}, 0, 6), shard_of({0, 1, 4}, 0, 18)},
      {shard_of({1, 0, 2}, 0, 8), shard_of({1, 2, 6}, 0, 5), shard_of({1, 2, 6}, 5, 11)},
  };
  for (const auto& from : cuts) {
    write(from);
    for (const auto& to : cuts) {
      for (const ShardDescriptor& shard : to) expect_to_read(shard);
    }
  }
}

TEST_F(StateOfACheckpoint, IsRefusedWhereItIsOfAnotherModel) {
  write({shard_of({0, 0, 4}, 0, 24)});
  const auto refusal = [&](const std::string& name, std::vector<std::int64_t> shape) {
    StateDict state;
    state.add(name, ShardDescriptor::whole(shape, false), at::zeros(shape).view({-1}));
    try {
      StateReader(folder_, 3).read(state);
    } catch (const DataError& error) {
      return error.what() + std::string("; ") + error.hint();
    }
    return std::string();
  };
  EXPECT_THAT(refusal("v", {4, 6}), HasSubstr("has no tensor 'v'; it is of another model"));
  // As behind steps that workers took on their own, or with another rule.
  for (const char* const state : {"optimizer.exp_avg.w", "optimizer.momentum.w"}) {
    EXPECT_THAT(refusal(state, {4, 6}),
                testing::AllOf(HasSubstr(std::string("has no tensor '") + state + "'"),
                               HasSubstr("--set name=NAME --set model.from="),
                               HasSubstr("step-00000003'")));
  }
  EXPECT_THAT(refusal("w", {6, 4}), HasSubstr("tensor 'w' has another shape"));
}

TEST_F(StateOfACheckpoint, MayChangeWhileItIsWritten) {
  StateDict state = part_of_whole(shard_of({0, 0, 4}, 0, 24));
  StateWriter writer;
  writer.begin(state, folder_.step_folder(3), "a.safetensors");
  at::Tensor now = state.tensors()[0].tensor;
  now.fill_(7);
  Manifest manifest;
  manifest.step = 3;
  manifest.numbers = {{"step", std::int64_t{3}}};
  const ShardReport report = writer.wait();
  manifest.tensors = report.tensors;
  manifest.shards = {report.shard};
  folder_.commit(manifest);
  expect_to_read(shard_of({0, 0, 4}, 0, 24));
  EXPECT_EQ(writer.staging_bytes(), 24 * sizeof(float));
}

// Three parts of 24 elements, of which each bound lets so many be copied.
TEST_F(StateOfACheckpoint, MayChangeWhereOnlySomeOfItIsCopied) {
  constexpr std::uint64_t kPart = 24 * sizeof(float);
  const ShardDescriptor all = shard_of({0, 0, 4}, 0, 24);
  StateWriter writer;
  std::int64_t attempt = 0;
  for (const std::uint64_t copied : {3, 2, 1, 0, 3}) {
    StateDict state;
    for (const char* const name : {"u", "v", "w"}) {
      at::Tensor part = at::empty({24});
      copy_from_whole(all, whole(), part);
      state.add(name, all, part);
    }
    const std::string file = std::to_string(attempt++) + ".safetensors";
    writer.begin(state, folder_.step_folder(3), file, (copied + 1) * kPart - 1);
    for (const StateTensor& each : state.tensors()) at::Tensor(each.tensor).fill_(7);
    EXPECT_EQ(writer.staging_bytes(), copied * kPart);
    const ShardReport report = writer.wait();
    ASSERT_EQ(report.error, "");
    const SafetensorsFile written(folder_.step_folder(3) / file);
    for (const char* const name : {"u", "v", "w"}) {
      EXPECT_TRUE(load_tensor(written, written.at(name)).equal(whole().view({-1}))) << name;
    }
  }
}

TEST_F(StateOfACheckpoint, LiesInAStore) {
  const std::filesystem::path store = temporary_.path() / "store";
  folder_ = CheckpointFolder("file://" + store.string() + "/run");
  const std::vector<ShardDescriptor> one = {shard_of({0, 0, 4}, 0, 24)},
                                     two = {shard_of({0, 0, 4}, 0, 7), shard_of({0, 0, 4}, 7, 17)};
  write(two);
  expect_to_read(shard_of({1, 2, 6}, 5, 11));
  write(one);
  expect_to_read(shard_of({1, 2, 6}, 5, 11));
  EXPECT_EQ(folder_.steps(), std::vector<std::int64_t>{3});
  EXPECT_TRUE(std::filesystem::exists(store / "run/step-00000003/1.safetensors"));
  folder_.remove_unnamed(folder_.read(3));
  EXPECT_FALSE(std::filesystem::exists(store / "run/step-00000003/1.safetensors"));

  write(two);
  StateReader reader(folder_, 3);
  std::string content = read_file(store / "run/step-00000003/1.safetensors", 1 << 20);
  content.back() ^= 1;
  write_file_atomically(store / "run/step-00000003/1.safetensors", content);
  reader.verify(0, 2);
  try {
    reader.verify(1, 2);
    ADD_FAILURE() << "it was read";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("1.safetensors' is damaged: its SHA-256"));
  }
  EXPECT_THROW(verify_shards(folder_.step_folder(3), reader.manifest()), DataError);
  std::filesystem::remove(store / "run/step-00000003/0.safetensors");
  EXPECT_THROW((void)folder_.read(3), DataError);
  folder_.remove_all();
  EXPECT_TRUE(folder_.steps().empty());
}

TEST_F(StateOfACheckpoint, OfAStoreIsRemovedOnceThereAreNewer) {
  folder_ = CheckpointFolder("file://" + temporary_.path().string() + "/store");
  for (const std::int64_t step : {1, 2, 3, 4}) {
    Manifest manifest;
    manifest.step = step;
    folder_.commit(manifest);
  }
  folder_.store()->write("step-00000002/begun", "x");
  folder_.store()->remove("step-00000002/manifest.json");
  folder_.store()->write("step-00000005/begun", "x");
  const std::vector<std::int64_t> best = {1};
  folder_.remove_old(4, 1, best);
  EXPECT_EQ(folder_.steps(), (std::vector<std::int64_t>{4, 1}));
  std::vector<std::string> names;
  for (const ObjectStore::File& file : folder_.store()->list()) names.push_back(file.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"step-00000001/manifest.json", "step-00000004/manifest.json",
                                      "step-00000005/begun"}));
}

// A file of several windows: each byte counts, wherever the reader asks for the next ones.
TEST_F(StateOfACheckpoint, IsComparedToItsLastByte) {
  const std::int64_t elements = (std::int64_t{9} << 20) / 4 + 3;
  StateDict state;
  state.add("w", ShardDescriptor::whole({elements}, true), at::arange(elements, at::kFloat));
  StateWriter writer;
  writer.begin(state, folder_.step_folder(3), "a.safetensors");
  const ShardReport report = writer.wait();
  Manifest manifest;
  manifest.step = 3;
  manifest.tensors = report.tensors;
  manifest.shards = {report.shard};
  folder_.commit(manifest);
  const StateReader whole(folder_, 3);
  StateReader(folder_, 3).verify();
  const std::filesystem::path file = folder_.step_folder(3) / "a.safetensors";
  const std::string content = read_file(file, std::uint64_t{1} << 24);
  for (const std::size_t place :
       {std::size_t{0}, std::size_t{4} << 20, (std::size_t{8} << 20) - 1, content.size() - 1}) {
    std::string changed = content;
    changed[place] ^= 1;
    write_file_atomically(file, changed);
    try {
      CheckpointFiles(folder_.step_folder(3)).verify(whole.manifest(), report.shard);
      ADD_FAILURE() << "it was read, with another byte " << place;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("a.safetensors' is damaged: its SHA-256"));
    }
  }
}

// Ranks of one host take plain files from the page cache; others go through one of them.
TEST_F(StateOfACheckpoint, SaysWhoShouldReadWhatSeveralRanksWant) {
  write({shard_of({0, 0, 4}, 0, 24)});
  EXPECT_EQ(StateReader(folder_, 3).readers(), PartReaders::kAllOfOneHost);
  ::setenv("TROIKA_TEST_KEY", std::string(64, '5').c_str(), 1);
  folder_ = CheckpointFolder(temporary_.path() / "secret", key_from("env:TROIKA_TEST_KEY", "test"));
  make_folders(folder_.step_folder(3));
  Manifest manifest;
  manifest.step = 3;
  folder_.commit(manifest);
  EXPECT_EQ(StateReader(folder_, 3).readers(), PartReaders::kOne);
  folder_ = CheckpointFolder("file://" + (temporary_.path() / "store").string());
  write({shard_of({0, 0, 4}, 0, 24)});
  EXPECT_EQ(StateReader(folder_, 3).readers(), PartReaders::kOne);
}

TEST_F(StateOfACheckpoint, SaysWhyItCannotBeWritten) {
  write_file_atomically(temporary_.path() / "checkpoints", "a file");
  StateWriter writer;
  writer.begin(part_of_whole(shard_of({0, 0, 4}, 0, 24)), folder_.step_folder(3), "a.safetensors");
  EXPECT_THAT(writer.wait().error, HasSubstr("checkpoints"));
}

}  // namespace
}  // namespace troika
