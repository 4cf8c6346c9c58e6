// What a kind of data says of its options before any file is opened.
#include <troika/data/sources/random/random.h>
#include <unit/data/support.h>

namespace troika {
namespace {

using ::testing::HasSubstr;

const SampleSpec kNoTokens{
    {{"features", at::kFloat, {3}}, {"targets", at::kFloat, {2}, 0, {}, TensorRole::kTarget}}};

TEST(DataKind, OfDocumentsFeedsLanguageModelsAlone) {
  for (const DataKind* kind : {&text_kind(), &tokens_kind()}) {
    const Options options = kind->defaults();
    EXPECT_EQ(message_of<UsageError>(
                  [&] { kind->check_model(options, kNoTokens, "mlp", Origins("recipe.toml")); }),
              "recipe.toml: [data] kind = \"" + std::string(kind->name()) +
                  "\" needs a language model, and [model] kind is \"mlp\"; write kind = "
                  "\"random\", or choose a language model");
    EXPECT_NO_THROW(kind->check_model(options, token_samples(4), "gpt", Origins()));
  }
  for (const SampleSpec& sample : {kNoTokens, token_samples(4)}) {
    EXPECT_NO_THROW(random_kind().check_model(random_kind().defaults(), sample, "any", Origins()));
  }
}

TEST(DataKind, OfDocumentsNeedsPathsWhenARunBegins) {
  const Options none(documents_in({})), some(documents_in({"a"}));
  EXPECT_THAT(message_of<UsageError>([&] { text_kind().check_ready(none, Origins()); }),
              HasSubstr("paths is empty"));
  EXPECT_EQ(text_kind().warnings(none, Origins()).size(), 1U);
  EXPECT_NO_THROW(text_kind().check_ready(some, Origins()));
  EXPECT_TRUE(text_kind().warnings(some, Origins()).empty());
  EXPECT_NO_THROW(random_kind().check_ready(random_kind().defaults(), Origins()));
}

TEST(DataKind, WeighsEveryPathOrNone) {
  DocumentOptions data = documents_in({"a", "b"});
  EXPECT_NO_THROW(text_kind().check(Options(data), Origins()));
  data.weights = {1};
  EXPECT_EQ(message_of<UsageError>([&] { text_kind().check(Options(data), Origins()); }),
            "recipe: [data] weights has 1 numbers for 2 paths; one for each, or none");
}

TEST(DataKind, SaysWhatWillBeThere) {
  EXPECT_EQ(text_kind().max_held_out_samples(Options(documents_in({"a"}, 0))), 0);
  EXPECT_EQ(text_kind().max_held_out_samples(Options(documents_in({"a"}, 0.1))), kUnlimited);
  EXPECT_EQ(random_kind().max_held_out_samples(Options(RandomOptions{0})), 0);
  EXPECT_EQ(random_kind().max_held_out_samples(Options(RandomOptions{0.1})), kRandomHeldOutSamples);
  DocumentOptions isolated = documents_in({"a"});
  isolated.pack = Pack::kIsolated;
  TensorSpec documents;
  documents.name = "document_ids";
  EXPECT_TRUE(text_kind().gives(Options(isolated), documents));
  EXPECT_FALSE(text_kind().gives(Options(documents_in({"a"})), documents));
  EXPECT_EQ(text_kind().tokenizer(Options(isolated)), "bytes");
  EXPECT_EQ(random_kind().tokenizer(random_kind().defaults()), std::nullopt);
}

}  // namespace
}  // namespace troika
