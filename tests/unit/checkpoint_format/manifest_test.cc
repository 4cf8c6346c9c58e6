#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/manifest.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/sha256.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temporary_folder.h"

namespace troika {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kDigest(64, 'a');

// A matrix of 4 x 6 that two ranks of a tensor axis have by columns, the second of them as two
// shards, and a scalar.
Manifest example() {
  Manifest manifest;
  manifest.step = 12;
  manifest.numbers = {{"step", std::int64_t{12}}, {"loss_scale", 65536.0}, {"best.value", 0.1}};
  manifest.tensors = {{"w", {DataType::kF32, {4, 6}}}, {"count", {DataType::kI64, {}}}};
  manifest.shards = {
      {"a.safetensors", 100, kDigest, {{"w", 1, 0, 2, 0, 8}, {"count", 0, 0, 1, 0, 1}}},
      {"b.safetensors", 90, kDigest, {{"w", 1, 2, 6, 0, 10}}},
      {"c.safetensors", 90, kDigest, {{"w", 1, 2, 6, 10, 6}}}};
  manifest.recipe = "name = \"run\"\n";
  manifest.provenance = {{"troika", "0.1"}};
  return manifest;
}

std::string refusal(const json& text) {
  try {
    (void)parse_manifest(text.dump(), "manifest.json");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(Manifest, IsReadAsItWasWritten) {
  EXPECT_EQ(parse_manifest(format_manifest(example()), "m"), example());
}

TEST(Manifest, HasNumbersThatAreNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Manifest manifest = example();
  manifest.numbers = {{"a", kInfinity}, {"b", -kInfinity}};
  EXPECT_EQ(parse_manifest(format_manifest(manifest), "m"), manifest);
  manifest.numbers["a"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(json::parse(format_manifest(manifest))["numbers"]["a"], "nan");
  const Manifest read = parse_manifest(format_manifest(manifest), "m");
  EXPECT_TRUE(std::isnan(std::get<double>(read.numbers.at("a"))));
}

TEST(Manifest, IsRefusedWhereverItIsCutOff) {
  const std::string text = format_manifest(example());
  for (std::size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_THROW((void)parse_manifest(text.substr(0, length), "m"), DataError) << length;
  }
}

TEST(Manifest, IsRefusedWhateverBitIsFlipped) {
  const std::string text = format_manifest(example());
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_THROW((void)parse_manifest(damaged, "m"), DataError) << bit / 8 << ": " << damaged;
  }
}

TEST(Manifest, IsRefusedByName) {
  const json good = json::parse(format_manifest(example()));
  const auto with = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    return refusal(changed);
  };
  EXPECT_EQ(refusal(good), "");
  EXPECT_THAT(with("/version", 1), HasSubstr("version 1 is not one that this troika reads"));
  EXPECT_THAT(with("/format", "x"), HasSubstr("no manifest of a troika checkpoint"));
  for (const char* file : {"../a", "/etc/passwd", "a/b", "", ".", "..", ".hidden", "a\\b"}) {
    EXPECT_THAT(with("/shards/0/file", file), HasSubstr("is no name of a file beside it")) << file;
  }
  EXPECT_THAT(with("/shards/1/file", "a.safetensors"), HasSubstr("is there twice"));
  EXPECT_THAT(with("/shards/0/sha256", "abc"), HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(with("/shards/0/bytes", -1), HasSubstr("'bytes' is negative"));
  EXPECT_THAT(with("/shards/0/parts/0/tensor", "v"), HasSubstr("a part of no tensor: 'v'"));
  EXPECT_THAT(with("/shards/0/parts/0/dim", 2), HasSubstr("is cut along dimension 2"));
  EXPECT_THAT(with("/shards/0/parts/0/slice", {0, 7}), HasSubstr("beyond its dimension of 6"));
  EXPECT_THAT(with("/shards/0/parts/0/elements", {1, 8}), HasSubstr("beyond its slice of 8"));
  EXPECT_THAT(with("/shards/0/parts/0/elements", {0, 7}),
              HasSubstr("tensor 'w' has 24 elements, and its parts 23"));
  EXPECT_THAT(with("/shards/0/parts/0/slice", {1, 3}), HasSubstr("parts of tensor 'w' overlap"));
  EXPECT_THAT(with("/shards/2/parts/0/elements", {9, 6}), HasSubstr("parts of tensor 'w' overlap"));
  EXPECT_THAT(with("/tensors/w/shape", {4, -6}), HasSubstr("is negative"));
  EXPECT_THAT(with("/tensors/w/shape", {1LL << 40, 1LL << 40}),
              HasSubstr("more bytes than 64 bits"));
  EXPECT_THAT(with("/tensors/w/dtype", "F31"), HasSubstr("unknown dtype 'F31'"));
  for (const json& number : {json("x"), json("Inf"), json("infinity"), json(), json("1")}) {
    EXPECT_THAT(with("/numbers/step", number), HasSubstr("the number 'step' is none"));
  }
  json huge = good;
  huge["tensors"]["w"]["shape"] = {1LL << 40, 6};
  huge["shards"][0]["parts"][0]["elements"] = {0, 2LL << 40};
  huge["shards"][1]["parts"][0]["elements"] = {0, 2LL << 40};
  huge["shards"][2]["parts"][0]["elements"] = {2LL << 40, 2LL << 40};
  EXPECT_THAT(refusal(huge), HasSubstr("tensor 'w' is in too many pieces"));
  json missing = good;
  missing.erase("shards");
  EXPECT_THAT(refusal(missing), HasSubstr("'shards' is missing"));
}

TEST(Manifest, ReportsOfRanksAreReadAsTheyWereWritten) {
  ShardReport report;
  report.shard = example().shards[1];
  report.tensors = example().tensors;
  const ShardReport read = parse_report(format_report(report), "rank 1");
  EXPECT_EQ(read.shard, report.shard);
  EXPECT_EQ(read.tensors, report.tensors);
  EXPECT_EQ(parse_report(format_report({{}, {}, "disk \"full\""}), "rank 1").error,
            "disk \"full\"");
}

// NIST's examples.
TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(Sha256().update("abc").digest(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256().update("").digest(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

class Checkpoints : public testing::Test {
 protected:
  // A checkpoint with one tensor of four bytes.
  void write(std::int64_t step, bool commit = true) const {
    const auto folder = folder_.step_folder(step);
    make_folders(folder);
    Sha256 hash;
    SafetensorsWriter writer(folder / "a.safetensors",
                             {{.name = "w", .type = DataType::kU8, .shape = {4}}}, {},
                             {.hash = &hash});
    writer.write(std::as_bytes(std::span("abcd", 4)));
    writer.commit();
    Manifest manifest;
    manifest.step = step;
    manifest.tensors = {{"w", {DataType::kU8, {4}}}};
    manifest.shards = {{"a.safetensors", writer.bytes(), hash.digest(), {{"w", 0, 0, 4, 0, 4}}}};
    if (commit) folder_.commit(manifest);
  }

  TemporaryFolder temporary_;
  CheckpointFolder folder_{temporary_.path() / "checkpoints"};
};

TEST_F(Checkpoints, AreThereOnceTheyHaveAManifest) {
  EXPECT_THAT(folder_.steps(), ElementsAre());
  write(5);
  write(10, /*commit=*/false);
  EXPECT_THAT(folder_.steps(), ElementsAre(5));
  write(100);
  EXPECT_THAT(folder_.steps(), ElementsAre(100, 5));
  EXPECT_EQ(folder_.read(5).step, 5);
}

TEST_F(Checkpoints, AreRemovedWhenEnoughNewerOnesAreThere) {
  for (const std::int64_t step : {5, 10, 15, 30}) write(step);
  write(12, /*commit=*/false);
  write(20, /*commit=*/false);
  folder_.remove_old(15, 2);
  EXPECT_THAT(folder_.steps(), ElementsAre(30, 15, 10));
  EXPECT_FALSE(std::filesystem::exists(folder_.step_folder(5)));
  EXPECT_FALSE(std::filesystem::exists(folder_.step_folder(12)));
  EXPECT_TRUE(std::filesystem::exists(folder_.step_folder(20)));
}

TEST_F(Checkpoints, LoseTheFilesOfAnAttemptBefore) {
  write(5);
  const auto other = folder_.step_folder(5) / "other.safetensors";
  write_file_atomically(other, "x");
  write(5);
  folder_.remove_unnamed(folder_.read(5));
  EXPECT_FALSE(std::filesystem::exists(other));
  EXPECT_EQ(folder_.read(5).step, 5);
}

TEST_F(Checkpoints, AreKnownToBeDamaged) {
  write(5);
  const auto file = folder_.step_folder(5) / "a.safetensors";
  verify_shards(folder_.step_folder(5), folder_.read(5));
  std::string bytes = read_file(file, 1 << 10);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(file, bytes);
  const Manifest manifest = folder_.read(5);
  EXPECT_THROW(verify_shards(folder_.step_folder(5), manifest), DataError);
  write_file_atomically(file, bytes + "x");
  EXPECT_THROW((void)folder_.read(5), DataError);
  std::filesystem::remove(file);
  EXPECT_THROW((void)folder_.read(5), DataError);
}

}  // namespace
}  // namespace troika
