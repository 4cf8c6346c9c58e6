// The data of a process as others compare them, and what the error says.
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/data/sources/documents.h>
#include <troika/data/sources/text/text.h>
#include <troika/train/compared_dataset.h>

#include <string>

namespace troika {
namespace {

using Of = ComparedData::Of;

TEST(ComparedDataset, HintsNameTheKeyOfTheKind) {
  const auto hint = [](const char* kind) {
    return same_files_hint("host", DataOptions::named(kind).kind());
  };
  EXPECT_EQ(hint("text"), "every host needs the same files behind data.paths and data.tokenizer");
  EXPECT_EQ(hint("tokens"), "every host needs the same files behind data.paths and data.tokenizer");
  EXPECT_EQ(hint("table"), "every host needs the same files behind data.files");
  EXPECT_EQ(hint("images"), "every host needs the same files behind data.path");
  EXPECT_EQ(hint("random"), "every host needs the same files");
}

TEST(ComparedDataset, SaysOnceWhoDiffersFromWhomAndHow) {
  const TemporaryFolder folder;
  const auto data = [&](const char* host, const std::string& text, OwnData own) {
    make_folders(folder / host);
    write_file_atomically(folder / host / "a.txt", text);
    DocumentOptions options;
    options.paths = {folder / host / "a.txt"};
    TensorSpec tokens{"input_ids", at::kLong, {4}, 256, "vocab_size"};
    TensorSpec targets = tokens;
    targets.name = "targets";
    targets.role = TensorRole::kTarget;
    return ComparedDataset(
        open_dataset(DataOptions(text_kind(), options), SampleSpec{{tokens, targets}, 4, "tokens"},
                     1),
        {.name = std::string("rank on ") + host, .hint = "copy", .own_data = own});
  };
  ComparedDataset ours = data("a", "three horses", OwnData::kNo),
                  theirs = data("b", "three horses abreast", OwnData::kNo);
  const std::string summary = *ours.summary(Of::kFiles);
  EXPECT_NE(theirs.identity(), ours.identity());
  const std::string message = theirs.difference(
      Of::kFiles, {ours.name(), summary, ours.excerpt(Of::kFiles, *theirs.summary(Of::kFiles))});
  EXPECT_TRUE(message.starts_with("rank on b has other data than rank on a: '")) << message;
  EXPECT_EQ(message.find("has other data", 20), std::string::npos) << message;
  try {
    std::rethrow_exception(theirs.error(message));
  } catch (const OtherDataError& error) {
    EXPECT_EQ(error.what(), message);
    EXPECT_EQ(error.hint(), "copy");
  }
  // With files of one's own only what the data become tensors by is compared.
  EXPECT_EQ(data("a", "three", OwnData::kYes).summary(Of::kFiles),
            data("b", "four", OwnData::kYes).summary(Of::kFiles));
  EXPECT_EQ(data("a", "three", OwnData::kYes).identity(), "");
}

}  // namespace
}  // namespace troika
