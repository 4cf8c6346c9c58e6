#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/checkpoint/safetensors.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(error.what()) + " / " + error.hint();
  }
  return "no error";
}

TEST(Safetensors, WritesAndReadsBytes) {
  TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  const std::vector<TensorBytes> tensors{{"small", DataType::kU8, {3}, bytes_of("abc")},
                                         {"large", DataType::kF64, {1, 1}, bytes_of("12345678")},
                                         {"none", DataType::kF32, {0}, {}}};
  write_safetensors(path, tensors, {{"made by", "a test"}});

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (Metadata{{"made by", "a test"}}));
  ASSERT_EQ(file.entries().size(), 3U);
  EXPECT_EQ(file.entries().front().name, "large");
  EXPECT_EQ(text_of(file.data(file.at("small"))), "abc");
  EXPECT_EQ(text_of(file.data(file.at("large"))), "12345678");
  EXPECT_TRUE(file.data(file.at("none")).empty());
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(Safetensors, NamesAMissingTensorAndTheNearest) {
  TemporaryFolder folder;
  const auto path = folder / "m";
  write_safetensors(path, std::vector<TensorBytes>{{"lm_head.weight", DataType::kU8, {0}, {}}});
  const SafetensorsFile file(path);
  EXPECT_EQ(error_of([&] { static_cast<void>(file.at("lm_haed.weight")); }),
            "'" + path.string() + "': no tensor 'lm_haed.weight' / did you mean 'lm_head.weight'?");
}

TEST(Safetensors, NamesTheFileThatIsHostile) {
  TemporaryFolder folder;
  write_file_atomically(folder / "bad", "12345678{}");
  EXPECT_THAT(error_of([&] { SafetensorsFile file(folder / "bad"); }),
              HasSubstr("'" + (folder / "bad").string() + "': not a safetensors file"));
  EXPECT_THAT(error_of([&] { SafetensorsFile file(folder / "absent"); }),
              HasSubstr("absent': No such file"));
}

TEST(SafetensorsWriter, StreamsInItsOwnOrder) {
  TemporaryFolder folder;
  SafetensorsWriter writer(folder / "m", {{.name = "z", .type = DataType::kU8, .shape = {1}},
                                          {.name = "b", .type = DataType::kI16, .shape = {1}},
                                          {.name = "a", .type = DataType::kU8, .shape = {2}}});
  std::string order;
  for (const TensorEntry& entry : writer.entries()) {
    order += entry.name;
    writer.write(bytes_of(std::string(entry.bytes(), entry.name[0])));
  }
  EXPECT_EQ(order, "baz");
  EXPECT_FALSE(std::filesystem::exists(folder / "m"));
  writer.commit();
  const SafetensorsFile file(folder / "m");
  EXPECT_EQ(text_of(file.data(file.at("a"))), "aa");
  EXPECT_EQ(text_of(file.data(file.at("b"))), "bb");
}

TEST(SafetensorsWriter, TakesPartsInAnyOrder) {
  TemporaryFolder folder;
  SafetensorsWriter writer(folder / "m", {{.name = "a", .type = DataType::kU8, .shape = {4}},
                                          {.name = "b", .type = DataType::kI16, .shape = {1}}});
  writer.write_part("a", 2, bytes_of("cd"));
  writer.write_part("b", 0, bytes_of("xy"));
  EXPECT_THROW(writer.commit(), InternalError);
  EXPECT_THROW(writer.write_part("a", 3, bytes_of("cd")), InternalError);
  EXPECT_THROW(writer.write_part("c", 0, bytes_of("c")), InternalError);
  writer.write_part("a", 0, bytes_of("ab"));
  writer.commit();
  const SafetensorsFile file(folder / "m");
  EXPECT_EQ(text_of(file.data(file.at("a"))), "abcd");
  EXPECT_EQ(text_of(file.data(file.at("b"))), "xy");
}

TEST(SafetensorsChunks, AreTheBytesOfAFile) {
  const TemporaryFolder folder;
  const std::string large((std::size_t{20} << 20) + 3, 'x'), small = "abc";
  const std::vector<TensorEntry> entries = {
      {.name = "large", .type = DataType::kU8, .shape = {std::ssize(large)}},
      {.name = "empty", .type = DataType::kI64, .shape = {0}},
      {.name = "small", .type = DataType::kU8, .shape = {std::ssize(small)}}};
  const std::map<std::string, std::string> values = {
      {"large", large}, {"empty", ""}, {"small", small}};
  write_safetensors(
      folder / "m",
      std::vector<TensorBytes>{{"large", DataType::kU8, {std::ssize(large)}, bytes_of(large)},
                               {"empty", DataType::kI64, {0}, {}},
                               {"small", DataType::kU8, {3}, bytes_of(small)}});
  const std::string expected = read_file(folder / "m", std::uint64_t{1} << 30);
  ::setenv("TROIKA_TEST_KEY", std::string(64, '5').c_str(), 1);
  for (const char* const source : {kNoKey, "env:TROIKA_TEST_KEY"}) {
    Sha256 hash;
    SafetensorsChunks chunks(
        entries, [&](const TensorEntry& entry) { return bytes_of(values.at(entry.name)); },
        {.hash = &hash, .key = key_from(source, "a test")});
    std::string all;
    for (auto piece = chunks.next(); !piece.empty(); piece = chunks.next()) {
      EXPECT_LE(piece.size(), std::size_t{10} << 20);
      all += text_of(piece);
    }
    EXPECT_EQ(chunks.bytes(), all.size());
    EXPECT_EQ(hash.digest(), sha256(bytes_of(all)));
    write_file_atomically(folder / "again", all);
    const SafetensorsFile file(folder / "again");
    EXPECT_EQ(text_of(file.data(file.at("large"))), large);
    EXPECT_EQ(text_of(file.data(file.at("small"))), small);
    EXPECT_EQ(all == expected, source == kNoKey);
  }
}

TEST(SafetensorsWriter, CommitsNothingThatIsIncomplete) {
  TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "m", {{.name = "a", .type = DataType::kU8, .shape = {2}}});
    EXPECT_THROW(writer.write(bytes_of("abc")), InternalError);
    EXPECT_THROW(writer.commit(), InternalError);
    writer.write(bytes_of("ab"));
    EXPECT_THROW(writer.write(bytes_of("ab")), InternalError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(SafetensorsWriter(folder / "m", {{.name = "\xFF"}}), UsageError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, NamesTheFolderThatIsMissing) {
  TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { write_safetensors(folder / "absent/m", {}); }),
              HasSubstr("absent/m': No such file"));
}

}  // namespace
}  // namespace troika
