#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/checkpoint/hub_index.h>

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TensorEntry floats(const std::string& name, std::int64_t count) {
  return {.name = name, .type = DataType::kF32, .shape = {count}};
}

std::vector<std::vector<std::string>> names_of(const std::vector<HubFile>& files) {
  std::vector<std::vector<std::string>> names;
  for (const HubFile& file : files) {
    names.emplace_back();
    for (const TensorEntry& tensor : file.tensors) names.back().push_back(tensor.name);
  }
  return names;
}

TEST(HubIndex, CutsWhereAFileWouldBeTooLarge) {
  const std::vector<TensorEntry> tensors = {floats("a", 2), floats("b", 2), floats("c", 1),
                                            floats("large", 9), floats("d", 4)};
  EXPECT_THAT(
      names_of(cut_into_hub_files(tensors, 16)),
      ElementsAre(ElementsAre("a", "b"), ElementsAre("c"), ElementsAre("large"), ElementsAre("d")));
  EXPECT_THAT(names_of(cut_into_hub_files(tensors, 1)).size(), 5);
  const auto one = cut_into_hub_files(tensors, 72);
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one[0].name, "model.safetensors");
}

TEST(HubIndex, ComesBack) {
  const auto files = cut_into_hub_files({floats("a", 4), floats("b", 4)}, 16);
  const std::string text = format_hub_index(files);
  EXPECT_THAT(text, HasSubstr("\"total_size\": 32"));
  EXPECT_THAT(parse_hub_index(text, "index"),
              ElementsAre(Pair("a", "model-00001-of-00002.safetensors"),
                          Pair("b", "model-00002-of-00002.safetensors")));
}

TEST(HubIndex, RefusesWhatIsNone) {
  for (const char* text : {"", "[", "[]", "7", "{}", R"({"weight_map": []})"}) {
    EXPECT_THROW((void)parse_hub_index(text, "index"), DataError) << text;
  }
  for (const char* file : {R"("../a")", R"("/a")", R"("a/b")", R"("")", R"("..")", R"(".a")",
                           R"("a\u0000")", "7", "null", R"(["a"])"}) {
    const std::string text = std::string(R"({"weight_map": {"t": )") + file + "}}";
    EXPECT_THROW((void)parse_hub_index(text, "index"), DataError) << text;
  }
}

// Cut off at every byte, and with every bit flipped, it is read or refused.
TEST(HubIndex, SurvivesDamage) {
  const std::string whole =
      format_hub_index(cut_into_hub_files({floats("a", 4), floats("b", 4)}, 16));
  const auto read = [](const std::string& text) {
    try {
      for (const auto& [tensor, file] : parse_hub_index(text, "index")) {
        EXPECT_EQ(file.find('/'), std::string::npos);
      }
    } catch (const DataError&) {
      SUCCEED();
    }
  };
  constexpr unsigned kBits = 8;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    read(whole.substr(0, i));
    for (unsigned bit = 0; bit < kBits; ++bit) {
      std::string text = whole;
      text[i] = static_cast<char>(text[i] ^ (1 << bit));
      read(text);
    }
  }
}

}  // namespace
}  // namespace troika
