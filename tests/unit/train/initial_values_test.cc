#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/train/initial_values.h>

namespace troika {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;
using Names = std::map<std::string, std::string>;

const std::map<std::string, ManifestTensor> kSaved = {
    {"net.conv.weight", {DataType::kF32, {4, 3}}},
    {"net.fc.bias", {DataType::kF32, {10}}},
    {"net.fc.weight", {DataType::kF32, {10, 4}}},
};

std::vector<StateSpec> model() {
  return {{"conv.weight", {4, 3}}, {"fc.bias", {5}}, {"fc.weight", {5, 4}}};
}

InitialValueOptions options(std::vector<RenamedTensors> rename, std::vector<std::string> ignore) {
  return {"file", std::move(rename), std::move(ignore)};
}

std::string refusal(const InitialValueOptions& options, const std::vector<StateSpec>& model) {
  try {
    (void)match_values(options, model, kSaved, "file");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(MatchedValues, AreRenamedAndIgnored) {
  EXPECT_EQ(match_values(options({{"net.*", "*"}}, {"fc.*"}), model(), kSaved, "file"),
            (Names{{"conv.weight", "net.conv.weight"}}));
  const std::vector<StateSpec> same = {
      {"body.conv.weight", {4, 3}}, {"head.bias", {10}}, {"head.weight", {10, 4}}};
  EXPECT_EQ(match_values(options({{"net.fc.*", "head.*"}, {"net.*", "body.*"}}, {}), same, kSaved,
                         "file"),
            (Names{{"body.conv.weight", "net.conv.weight"},
                   {"head.bias", "net.fc.bias"},
                   {"head.weight", "net.fc.weight"}}));
}

TEST(MatchedValues, AreRefusedWithAllThatDiffers) {
  EXPECT_THAT(refusal(options({}, {}), model()),
              HasSubstr("missing 'conv.weight', 'fc.bias', 'fc.weight'; unexpected "
                        "'net.conv.weight', 'net.fc.bias', 'net.fc.weight'"));
  EXPECT_THAT(refusal(options({{"net.*", "*"}}, {}), model()),
              HasSubstr("'fc.bias' ([10] there, [5] here), 'fc.weight' ([10, 4] there, [5, 4] "
                        "here)"));
  std::vector<StateSpec> large;
  for (int i = 0; i < 9; ++i) large.push_back({"w" + std::to_string(i), {1}});
  EXPECT_THAT(refusal(options({}, {}), large), HasSubstr("'w0', 'w1', 'w2' and 6 more"));
}

TEST(MatchedValues, AreRefusedForPatternsThatFitNothing) {
  const std::string found =
      refusal(options({{"net.*", "*"}, {"nut.*", "*"}}, {"fc.*", "fd.*"}), model());
  EXPECT_THAT(found, HasSubstr("fits nothing: from_ignore 'fd.*', from_rename 'nut.*'"));
  EXPECT_THAT(found, Not(HasSubstr("missing")));
  EXPECT_THAT(
      refusal(options({{"net.fc.bias", "net.fc.weight"}, {"net.*", "*"}}, {"fc.*"}), model()),
      HasSubstr("unexpected 'net.fc.bias'"));
  EXPECT_THAT(refusal(options({{"net.fc.bias", "fc.weight"}, {"net.*", "*"}}, {}), model()),
              HasSubstr("of one name once renamed 'net.fc.weight' and 'net.fc.bias'"));
}

TEST(ValuesOfAnAdapter, AreMissedByTheirOwnKey) {
  const TemporaryFolder folder;
  const auto refusal = [&] {
    try {
      (void)find_values(folder / "adapter_model.safetensors", ValuesOf::kAdapters);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal(), HasSubstr("[adapter] from: there is no '"));
  EXPECT_THAT(refusal(), Not(HasSubstr("adapter_model.bin")));
  write_file_atomically(folder / "adapter_model.bin", "PK");
  EXPECT_THAT(refusal(), HasSubstr("[adapter] from: there is no '"));
  EXPECT_THAT(refusal(), HasSubstr("adapter_model.bin is not read"));
  write_file_atomically(folder / "adapter_model.safetensors", "");
  EXPECT_EQ(refusal(), "");
}

TEST(ValuesOfARun, AreItsModelOnceItIsFinishedAndItsNewestCheckpointBefore) {
  const TemporaryFolder run;
  const auto write = [&](const char* name) {
    make_folders((run / name).parent_path());
    write_file_atomically(run / name, "{}");
  };
  EXPECT_THROW((void)find_values(run.path()), DataError);
  EXPECT_THROW((void)find_values(run / "nowhere"), DataError);
  write("model.safetensors");
  EXPECT_EQ(find_values(run.path()), run / "model.safetensors");
  write("checkpoints/step-00000005/manifest.json");
  write("checkpoints/step-00000010/manifest.json");
  const fs::path newest = run / "checkpoints/step-00000010";
  for (const fs::path& path : {run.path(), run / "checkpoints", newest}) {
    EXPECT_EQ(find_values(path), newest);
  }
  write("summary.json");
  EXPECT_EQ(find_values(run.path()), run / "model.safetensors");
}

}  // namespace
}  // namespace troika
