#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/script_file.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/models/mlp/options.h>
#include <troika/models/plugin/options.h>
#include <troika/models/torchscript/options.h>
#include <troika/train/model_sources.h>

#include <string>
#include <vector>

namespace troika {
namespace {

using testing::HasSubstr;

std::vector<std::string> names_of(const std::vector<SourcePart>& parts) {
  std::vector<std::string> names;
  for (const SourcePart& each : parts) names.push_back(each.name);
  return names;
}

TEST(ModelSources, AreNoneWhereValuesAreDrawn) {
  EXPECT_TRUE(model_sources(ModelOptions::named("mlp")).empty());
}

// The library of a plug-in is compared whole, and so are the files that its kind names.
TEST(ModelSources, OfAPluginAreItsLibraryAndItsFiles) {
  const TemporaryFolder folder;
  const auto library = folder.path() / "libmine.so", script = folder.path() / "net.pt";
  write_file_atomically(library, "a library");
  test::write_script(script);
  TorchscriptOptions own;
  own.path = script.string();
  PluginOptions plugin;
  plugin.library = library.string();
  plugin.kind = &torchscript_kind();
  plugin.own = ModelOptions(torchscript_kind(), own).options();
  const std::vector<SharedSource> sources = model_sources(ModelOptions(plugin_kind(), plugin));
  ASSERT_EQ(sources.size(), 2);
  EXPECT_EQ(sources[0].path, library);
  EXPECT_THAT(sources[0].title, HasSubstr("the model's file '"));
  EXPECT_EQ(sources[1].path, script);
  const std::vector<SourcePart> before = sources[0].parts();
  EXPECT_THAT(names_of(before), testing::ElementsAre(""));
  EXPECT_TRUE(sources[0].details().empty());
  write_file_atomically(library, "a librarz");
  EXPECT_NE(sources[0].parts(), before);
  std::filesystem::remove(library);
  EXPECT_THROW((void)sources[0].parts(), DataError);
}

// The hint of files that differ in their code alone names what writes such files.
TEST(ModelSources, OfAScriptSayWhyItsCodeMayDiffer) {
  TorchscriptOptions options;
  options.path = "net.pt";
  const auto sources = model_sources(ModelOptions(torchscript_kind(), options));
  EXPECT_THAT(sources.at(0).hint_if_details_are_equal, HasSubstr("torch.jit.save()"));
}

// The name that a script was saved under does not count; a value does, and has its name.
TEST(ModelSources, OfAScriptAreWhatIsInIt) {
  const TemporaryFolder folder;
  const auto parts_of = [&](const std::string& name, double dropout) {
    test::write_script(folder.path() / name, dropout);
    return parts_of_file(folder.path() / name);
  };
  const std::vector<SourcePart> before = parts_of("net.pt", 0);
  EXPECT_THAT(names_of(before), testing::Contains("record 'data/0'"));
  EXPECT_EQ(parts_of("again.pt", 0), before);
  TorchscriptOptions options;
  options.path = (folder.path() / "net.pt").string();
  const auto digests = digests_of_model(ModelOptions(torchscript_kind(), options));
  EXPECT_NE(parts_of("net.pt", 0.5), before);
  const auto others = digests_of_model(ModelOptions(torchscript_kind(), options));
  ASSERT_EQ(digests.size(), 1U);
  EXPECT_EQ(others.begin()->first, digests.begin()->first);
  EXPECT_NE(others.begin()->second, digests.begin()->second);
  const auto sources = model_sources(ModelOptions(torchscript_kind(), options));
  EXPECT_THAT(names_of(sources.at(0).details()),
              testing::UnorderedElementsAre(
                  "tensor 'first'", "tensor 'last'", "tensor 'scale'", "tensor 'norm.weight'",
                  "tensor 'norm.bias'", "tensor 'norm.running_mean'", "tensor 'norm.running_var'"));
}

}  // namespace
}  // namespace troika
