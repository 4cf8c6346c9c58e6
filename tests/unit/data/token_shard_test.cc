#include <troika/base/bytes.h>
#include <troika/base/hash.h>
#include <troika/data/sources/tokens/shard_writer.h>
#include <troika/data/sources/tokens/token_documents.h>
#include <troika/data/sources/tokens/token_shard.h>
#include <unit/data/support.h>

#include <cstring>

namespace troika {
namespace {

using ::testing::HasSubstr;

// A shard of the documents {5, 6}, {}, {7, largest}.
std::string shard_file(std::uint64_t vocab_size, std::int32_t largest) {
  TemporaryFolder folder;
  ShardWriter writer(folder / "x.tokens",
                     {.vocab_size = vocab_size, .separator = 3, .tokenizer = 99});
  const std::vector<std::int32_t> first = {5, 6}, last = {7, largest};
  writer.add_tokens(first);
  writer.end_document(11, 20);
  writer.end_document(12, 0);
  writer.add_tokens(std::span(last).first(1));
  writer.add_tokens(std::span(last).subspan(1));
  writer.end_document(13, 30);
  writer.finish();
  return file_content(folder / "x.tokens");
}

std::vector<std::int64_t> document(const TokenShard& shard, std::uint64_t number) {
  std::vector<std::int64_t> ids(shard.length(number));
  shard.read(number, 0, ids);
  return ids;
}

// Changes 8 bytes of a shard and makes the checksum fit.
std::string changed(std::string file, std::size_t at, std::uint64_t value) {
  std::memcpy(file.data() + at, &value, sizeof(value));
  const std::uint64_t sum = content_hash(file.substr(0, kShardHeaderBytes - 8));
  std::memcpy(file.data() + kShardHeaderBytes - 8, &sum, sizeof(sum));
  return file;
}

std::string error_of(const std::string& file) {
  const std::string message = message_of([&] { TokenShard(bytes_of(file), "dir/x.tokens"); });
  EXPECT_THAT(message, HasSubstr("'dir/x.tokens'"));
  return message;
}

TEST(TokenShard, ReadsWhatWasWrittenInEveryWidth) {
  const std::vector<std::pair<std::uint64_t, std::uint32_t>> cases = {
      {200, 1}, {256, 1}, {257, 2}, {65536, 2}, {65537, 4}, {1'000'000, 4}};
  for (const auto& [vocab_size, width] : cases) {
    const auto largest = static_cast<std::int32_t>(vocab_size) - 1;
    const std::string file = shard_file(vocab_size, largest);
    const TokenShard shard(bytes_of(file), "x");
    const TokenShardHeader expected{width, vocab_size, 3, 4, 50, vocab_size - 1, 3, 99};
    EXPECT_EQ(shard.header(), expected);
    EXPECT_EQ(document(shard, 0), (std::vector<std::int64_t>{5, 6}));
    EXPECT_EQ(document(shard, 1), (std::vector<std::int64_t>{}));
    EXPECT_EQ(document(shard, 2), (std::vector<std::int64_t>{7, largest}));
    EXPECT_EQ(shard.key(0), 11U);
    EXPECT_EQ(shard.key(2), 13U);
    std::vector<std::int64_t> one(1);
    shard.read(2, 1, one);
    EXPECT_EQ(one.front(), largest);
  }
}

TEST(TokenShard, SaysWhichTokensAreTargets) {
  // Masks that begin late, end early, and cross words of 64 bits.
  for (const std::size_t tokens : {1U, 63U, 64U, 65U, 130U}) {
    TemporaryFolder folder;
    ShardWriter writer(folder / "x.tokens", {.vocab_size = 300, .separator = 3});
    const std::vector<std::int32_t> ids(std::max<std::size_t>(70, tokens), 299);
    writer.add_tokens(std::span(ids).first(70));
    writer.end_document(1, 1);
    std::vector<char> mask;
    for (std::size_t i = 0; i < tokens; ++i) mask.push_back(i % 3 == 0 ? 0 : 1);
    writer.add_tokens(std::span(ids).first(tokens), mask);
    writer.end_document(2, 1);
    writer.add_tokens(std::span(ids).first(5));
    writer.end_document(3, 1);
    writer.finish();
    const std::string file = file_content(folder / "x.tokens");
    const TokenShard shard(bytes_of(file), "x");
    EXPECT_TRUE(shard.header().has_mask);
    EXPECT_TRUE(shard.header().separator_is_target);
    const std::vector<std::vector<char>> expected = {std::vector<char>(70, 1), mask,
                                                     std::vector<char>(5, 1)};
    for (std::uint64_t number = 0; number < 3; ++number) {
      std::vector<char> read(shard.length(number)), last(1);
      shard.read_mask(number, 0, read);
      EXPECT_EQ(read, expected[number]);
      shard.read_mask(number, read.size() - 1, last);
      EXPECT_EQ(last.front(), read.back());
    }
    EXPECT_EQ(document(shard, 1).size(), tokens);
    EXPECT_THAT(error_of(file.substr(0, file.size() - 8)), HasSubstr("truncated"));
    EXPECT_THAT(error_of(changed(file, 72, 2)), HasSubstr("reserved"));
    // The last bit of the mask, before 4 places of documents and 3 keys.
    std::string odd = file;
    odd[file.size() - 7 * 8 - 1] = static_cast<char>(odd[file.size() - 7 * 8 - 1] | 0x80);
    EXPECT_THAT(error_of(odd), HasSubstr("has bits behind its mask that are not zero"));
  }
}

TEST(TokenShard, RefusesToReadOutsideADocument) {
  const std::string file = shard_file(256, 9);
  const TokenShard shard(bytes_of(file), "x");
  std::vector<std::int64_t> ids(2);
  EXPECT_THROW(shard.read(0, 1, ids), InternalError);
  EXPECT_THROW(shard.read(0, ~std::uint64_t{0}, ids), InternalError);
  EXPECT_THROW(shard.read(3, 0, ids), InternalError);
}

TEST(TokenShard, ReadsUnalignedBytes) {
  const std::string file = "x" + shard_file(1000, 999);
  const TokenShard shard(bytes_of(file).subspan(1), "x");
  EXPECT_EQ(document(shard, 2), (std::vector<std::int64_t>{7, 999}));
}

TEST(TokenShard, NamesEveryTruncation) {
  const std::string file = shard_file(1000, 999);
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_THAT(error_of(file.substr(0, size)),
                HasSubstr(size < 8 ? "not a token shard" : "truncated"));
  }
  EXPECT_THAT(error_of(file + "x"), HasSubstr("1 bytes too many"));
}

TEST(TokenShard, NoticesEveryChangedByteOfTheHeader) {
  const std::string file = shard_file(1000, 999);
  for (std::size_t i = 0; i < kShardHeaderBytes; ++i) {
    std::string damaged = file;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    error_of(damaged);
  }
  EXPECT_THAT(error_of("TROIKATX" + file.substr(8)), HasSubstr("not a token shard"));
  std::string sum = file;
  sum[kShardHeaderBytes - 1] = static_cast<char>(sum[kShardHeaderBytes - 1] + 1);
  EXPECT_THAT(error_of(sum), HasSubstr("checksum"));
}

TEST(TokenShard, ChecksEveryFieldBehindTheChecksum) {
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  const std::string file = shard_file(1000, 999);
  const std::size_t begins = kShardHeaderBytes + 8;
  const auto error = [&](std::size_t at, std::uint64_t value) {
    return error_of(changed(file, at, value));
  };
  EXPECT_THAT(error(8, std::uint64_t{2} << 32 | 3), HasSubstr("version 3"));
  EXPECT_THAT(error(8, std::uint64_t{2} << 32 | 2), HasSubstr("truncated"));  // without a mask
  EXPECT_THAT(error(72, 1), HasSubstr("reserved"));
  EXPECT_THAT(error(8, std::uint64_t{3} << 32 | 1), HasSubstr("3 bytes"));
  EXPECT_THAT(error(16, 0), HasSubstr("vocabulary"));
  EXPECT_THAT(error(16, 65537), HasSubstr("vocabulary"));
  EXPECT_THAT(error(16, 500), HasSubstr("999 beyond its vocabulary of 500"));
  EXPECT_THAT(error(24, 0), HasSubstr("no tokens"));
  EXPECT_THAT(error(24, kMax), HasSubstr("truncated"));
  EXPECT_THAT(error(24, std::uint64_t{1} << 61), HasSubstr("truncated"));
  EXPECT_THAT(error(24, 4), HasSubstr("truncated"));
  EXPECT_THAT(error(24, 2), HasSubstr("too many"));
  EXPECT_THAT(error(32, 0), HasSubstr("no tokens"));
  EXPECT_THAT(error(32, kMax), HasSubstr("truncated"));
  EXPECT_THAT(error(32, kMax / 2), HasSubstr("truncated"));
  EXPECT_THAT(error(48, 1000), HasSubstr("1000 beyond"));
  EXPECT_THAT(error(56, kMax), HasSubstr("beyond its vocabulary"));
  EXPECT_THAT(error(80, 1), HasSubstr("reserved"));
  EXPECT_THAT(error(begins, 1), HasSubstr("does not begin at token 0"));
  EXPECT_THAT(error(begins + 8, 5), HasSubstr("document 0 is from token 0 to 5 of 4"));
  EXPECT_THAT(error(begins + 8, kMax), HasSubstr("out of order"));
  EXPECT_THAT(error(begins + 16, 1), HasSubstr("document 1 is from token 2 to 1"));
  EXPECT_THAT(error(begins + 24, 3), HasSubstr("end at token 3 of 4"));
}

class TokenDocuments : public ::testing::Test {
 protected:
  FoundFile shard(const std::string& name, std::uint64_t tokenizer, std::int32_t id) {
    ShardWriter writer(folder_ / name, {.vocab_size = 300, .separator = 1, .tokenizer = tokenizer});
    writer.add_tokens(std::vector<std::int32_t>{id, id});
    writer.end_document(static_cast<std::uint64_t>(id), 8);
    writer.add_tokens(std::vector<std::int32_t>{id});
    writer.end_document(static_cast<std::uint64_t>(id) + 1, 4);
    writer.finish();
    return {folder_ / name, 1};
  }
  TemporaryFolder folder_;
};

TEST_F(TokenDocuments, NumbersThroughAllShards) {
  const std::vector<FoundFile> files = {shard("a", 7, 10), shard("b", 7, 20), shard("c", 7, 299)};
  const auto source = open_token_documents(files);
  ASSERT_EQ(source->documents(), 6);
  EXPECT_EQ(source->length(2), 2);
  EXPECT_EQ(source->length(5), 1);
  EXPECT_EQ(source->key(3), 21U);
  EXPECT_EQ(source->separator(), 1);
  EXPECT_EQ(source->largest_id(), 299);
  EXPECT_DOUBLE_EQ(source->text_bytes(0), 8);
  std::vector<std::int64_t> ids(1);
  source->read(5, 0, ids);
  EXPECT_EQ(ids.front(), 299);

  EXPECT_NO_THROW(check_vocabulary(*source, 300));
  const std::string message = message_of([&] { check_vocabulary(*source, 299); });
  EXPECT_THAT(message, HasSubstr((folder_ / "c").string()));
  EXPECT_THAT(message, HasSubstr("document 0, holds the token id 299"));
  EXPECT_THAT(message, HasSubstr("vocab_size is 299"));
  EXPECT_THAT(message_of([&] { check_vocabulary(*source, 1); }), HasSubstr("between documents"));
}

TEST_F(TokenDocuments, RefusesShardsOfDifferentTokenizers) {
  const std::vector<FoundFile> files = {shard("a", 7, 10), shard("b", 8, 20)};
  EXPECT_THAT(message_of([&] { static_cast<void>(open_token_documents(files)); }),
              HasSubstr("different tokenizers"));
}

// Files behind URLs, by the plug-in as it is built, on Arrow's file system of this host.
TEST_F(TokenDocuments, ReadsShardsBehindUrlsAsThoseOfThisHost) {
  for (const int id : {10, 20, 256, 299}) shard(std::to_string(id) + ".x", 0, id);
  write_file(folder_ / "tokenizer.model", "no shard");
  const auto open = [&](const std::string& before) {
    DocumentOptions data = documents_in({before + (folder_ / "*.x").string()}, 0.5);
    return open_tokens(data, token_samples(3, 300), 1);
  };
  const auto here = open(""), behind = open("file://");
  EXPECT_EQ(behind->fingerprint(), here->fingerprint());
  ASSERT_EQ(behind->files().size(), 4U);
  EXPECT_EQ(behind->files()[1].path, "file://" + (folder_ / "20.x").string());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(behind->files()[i].size, here->files()[i].size);
    EXPECT_EQ(behind->files()[i].head, here->files()[i].head);
  }
  for (const Split split : {Split::kTrain, Split::kHeldOut}) {
    ASSERT_GT(here->samples(split), 0);
    const IndexRange all{0, here->samples(split)};
    const auto expected = build_microbatches(*here, split, all, 2, 1);
    const auto read = build_microbatches(*behind, split, all, 2, 1);
    ASSERT_EQ(read.size(), expected.size());
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(read[i].valid, expected[i].valid);
      EXPECT_EQ(values(*read[i].tensors.find("input_ids")),
                values(*expected[i].tensors.find("input_ids")));
      EXPECT_EQ(values(*read[i].tensors.find("targets")),
                values(*expected[i].tensors.find("targets")));
    }
  }
}

TEST_F(TokenDocuments, NamesAShardBehindAUrlThatIsNone) {
  shard("good.x", 7, 10);
  const std::string url = "file://" + (folder_ / "").string();
  const auto open = [&](const std::string& path) {
    return message_of(
        [&] { static_cast<void>(open_tokens(documents_in({path}), token_samples(3, 300), 1)); });
  };
  write_file(folder_ / "cut.x", file_content(folder_ / "good.x").substr(0, 150));
  EXPECT_THAT(open(url + "cut.x"), HasSubstr("cut.x' is truncated: it has 150 bytes"));
  write_file(folder_ / "short.x", "TROIKATK");
  EXPECT_THAT(open(url + "short.x"), HasSubstr("short.x' is truncated"));
  write_file(folder_ / "other.x", "no shard");
  EXPECT_THAT(open(url + "other.x"), HasSubstr("other.x' is not a token shard"));
  std::string order = file_content(folder_ / "good.x");
  order[order.size() - 40] = 9;  // where the first document begins
  write_file(folder_ / "order.x", order);
  EXPECT_THAT(open(url + "order.x"), HasSubstr("does not begin at token 0"));
  EXPECT_THAT(open(url + "none.x"), HasSubstr("cannot list"));
}

// The header may lie about the largest id; the ids are looked at again where they are used.
TEST_F(TokenDocuments, FindsAnIdThatTheHeaderHides) {
  shard("a", 0, 250);
  std::string file = changed(file_content(folder_ / "a"), 48, 5);
  write_file(folder_ / "b", file);
  DocumentOptions data = documents_in({folder_ / "b"});
  const auto dataset = open_tokens(data, token_samples(4, 100), 1);
  const std::vector<SampleRef> samples = {dataset->at(Split::kTrain, 0)};
  EXPECT_THAT(
      message_of([&] { static_cast<void>(dataset->microbatch(Split::kTrain, samples, 1)); }),
      HasSubstr("holds the token id 250, but model.vocab_size is 100"));
}

}  // namespace
}  // namespace troika
