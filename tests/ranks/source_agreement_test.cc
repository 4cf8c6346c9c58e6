// Ranks whose files, or values, are not the same are told so before they train: the same error on
// every rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/session/source_agreement.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {
namespace {

const SourceAgreement kAgreement{"test of sources", Seconds(30), "copy it"};

std::string refusal(const Session& session, const std::vector<SharedSource>& sources) {
  try {
    agree_on_sources(session, sources, kAgreement);
  } catch (const DataError& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "";
}

SharedSource made(std::vector<SourcePart> parts) {
  SharedSource source;
  source.title = "the model";
  source.parts = [parts = std::move(parts)] { return parts; };
  return source;
}

RANK_TEST(SourceAgreement, NamesTheFirstPartThatDiffersAndBothRanks, 3) {
  const Session session = Session::on(rank.group());
  const bool is_last = rank.index() == 2;
  EXPECT_EQ(refusal(session, {made({{"tensor 'a'", 1}, {"tensor 'b'", 2}})}), "");
  EXPECT_EQ(refusal(session, {made({{"tensor 'a'", 1}, {"tensor 'b'", is_last ? 3U : 2U}})}),
            "the model differs between rank 0 and rank 2, first in tensor 'b' | copy it");
  // The second source, and a part that one rank alone has.
  std::vector<SourcePart> parts = {{"tensor 'a'", 1}};
  if (is_last) parts.push_back({"tensor 'c'", 1});
  EXPECT_EQ(refusal(session, {made({{"", 7}}), made(parts)}),
            "the model differs between rank 0 and rank 2, first in tensor 'c' | copy it");
  // Parts without names.
  EXPECT_EQ(refusal(session, {made({{"", rank.index() == 1 ? 8U : 7U}})}),
            "the model differs between rank 0 and rank 1 | copy it");
  // Details are asked for after a difference, and say more where they can.
  SharedSource script = made({{"record 'data/0'", is_last ? 3U : 2U}});
  script.details = [&] { return std::vector<SourcePart>{{"tensor 'w'", is_last ? 3U : 2U}}; };
  EXPECT_EQ(refusal(session, {script}),
            "the model differs between rank 0 and rank 2, first in tensor 'w' | copy it");
  script.details = [] { return std::vector<SourcePart>{{"tensor 'w'", 2}}; };
  EXPECT_EQ(refusal(session, {script}),
            "the model differs between rank 0 and rank 2, first in record 'data/0' | copy it");
  // Where they are all equal, what that means is known.
  script.hint_if_details_are_equal = "it was saved anew";
  EXPECT_EQ(refusal(session, {script}),
            "the model differs between rank 0 and rank 2, first in record 'data/0' | it was saved "
            "anew");
  script.details = [] { return std::vector<SourcePart>{}; };  // could not be told
  EXPECT_EQ(refusal(session, {script}),
            "the model differs between rank 0 and rank 2, first in record 'data/0' | copy it");
}

RANK_TEST(SourceAgreement, ReadsAFileOnceOnAHost, 3) {
  const Session session = Session::on(rank.group());
  const std::filesystem::path shared = rank.folder() / "shared",
                              own = rank.folder() / std::to_string(rank.index());
  if (rank.index() == 0) write_file_atomically(shared, "a");
  write_file_atomically(own, "a");
  rank.wait_for_all("written");
  int reads = 0;
  SharedSource source;
  source.title = "the file";
  source.path = shared;
  source.parts = [&] {
    ++reads;
    return std::vector<SourcePart>{{"", 1}};
  };
  EXPECT_EQ(refusal(session, {source}), "");
  EXPECT_EQ(reads, 0);  // all see one file, so it is not compared with itself
  // Rank 2 has a copy.
  if (rank.index() == 2) source.path = own;
  EXPECT_EQ(refusal(session, {source}), "");
  EXPECT_EQ(reads, rank.index() == 1 ? 0 : 1);
}

RANK_TEST(SourceAgreement, TellsEveryRankOfAFileThatCannotBeRead, 3) {
  const Session session = Session::on(rank.group());
  SharedSource source = made({{"", 1}});
  source.parts = [&]() -> std::vector<SourcePart> {
    if (rank.index() == 1) throw DataError("cannot read 'net.pt'", "look for it");
    return {{"", 1}};
  };
  EXPECT_EQ(refusal(session, {source}), "cannot read 'net.pt', on rank 1 | look for it");
}

RANK_TEST(SourceAgreement, ComparesTensorsToTheLastBit, 2) {
  const Session session = Session::on(rank.group());
  const auto difference = [&](const at::Tensor& first, const at::Tensor& second) {
    SharedSource source = made({tensor_part("same", at::arange(3))});
    source.parts = [&] {
      return std::vector<SourcePart>{tensor_part("w", rank.index() == 0 ? first : second)};
    };
    return !refusal(session, {source}).empty();
  };
  const at::Tensor values = at::linspace(-1, 1, 12).view({3, 4});
  at::Tensor other = values.clone();
  other.view(at::kInt)[2][3] += 1;
  EXPECT_TRUE(difference(values, other));
  EXPECT_TRUE(difference(values, values.view({4, 3})));
  EXPECT_TRUE(difference(values, values.view(at::kInt)));
  EXPECT_TRUE(difference(at::zeros({2}), -at::zeros({2})));
  EXPECT_FALSE(difference(values, values.t().contiguous().t()));  // other strides, the same values
}

}  // namespace
}  // namespace troika::test
