#include <troika/base/file.h>
#include <troika/data/chat/chat_template.h>
#include <troika/data/chat/conversations.h>
#include <troika/data/chat/encode_spans.h>
#include <troika/data/prepare.h>
#include <troika/data/sources/chat/chat.h>
#include <troika/data/sources/tokens/token_documents.h>
#include <troika/data/tokenizer.h>
#include <unit/data/character_tokenizer.h>
#include <unit/data/support.h>

#include <nlohmann/json.hpp>

#include <array>
#include <set>

namespace troika {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kControls = {"<|endoftext|>",
                                            "<|im_start|>",
                                            "<|im_end|>",
                                            "<|begin_of_text|>",
                                            "<|start_header_id|>",
                                            "<|end_header_id|>",
                                            "<|eot_id|>",
                                            "<s>",
                                            "</s>",
                                            "[INST]",
                                            "[/INST]"};

std::string name_of(const Tokenizer& tokenizer, std::int64_t id) {
  for (const std::string& each : kControls) {
    if (const auto token = tokenizer.token(each); token && token->id == id) return each;
  }
  return tokenizer.decode({&id, 1});
}

// The text of ids, what is learned in braces.
std::string shown(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                  std::span<const char> learned) {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (learned[i] != 0 && (i == 0 || learned[i - 1] == 0)) text += '{';
    if (learned[i] == 0 && i > 0 && learned[i - 1] != 0) text += '}';
    text += name_of(tokenizer, ids[i]);
  }
  return learned.empty() || learned.back() == 0 ? text : text + '}';
}

class Chat : public ::testing::Test {
 protected:
  Chat() {
    write_file(folder_ / "tokenizer.json", characters_json(kControls));
    tokenizer_ = open_tokenizer(folder_ / "tokenizer.json");
    options_ = documents_in({folder_ / "*.jsonl"});
    options_.tokenizer = folder_ / "tokenizer.json";
    options_.pack = Pack::kPad;
  }
  // Returns the conversations of a data set that pads them, in the order of the files.
  std::vector<std::string> conversations() {
    const auto files = find_files(std::vector<std::string>{folder_ / "*.jsonl"}).files[0];
    PrepareOptions prepare;
    prepare.out = folder_ / "shards";
    prepare.paths = options_.paths;
    prepare.tokenizer = options_.tokenizer;
    prepare.columns.chat_template = options_.chat_template;
    (options_.column == "none" ? prepare.columns.messages : prepare.columns.text) =
        options_.column == "none" ? options_.messages : options_.column;
    const PrepareReport report = prepare_tokens(prepare);
    EXPECT_TRUE(report.stands_apart);
    const FoundFile shard{report.shards[0], 1};
    const auto source = open_token_documents({&shard, 1});
    std::vector<std::string> all;
    for (std::int64_t document = 0; document < source->documents(); ++document) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(source->length(document)));
      std::vector<char> learned(ids.size());
      source->read(document, 0, ids);
      source->read_mask(document, 0, learned);
      all.push_back(shown(*tokenizer_, ids, learned));
    }
    std::filesystem::remove_all(prepare.out);
    return all;
  }
  void write(std::string_view lines) { write_file(folder_ / "a.jsonl", lines); }
  std::unique_ptr<Dataset> open(std::int64_t seq_len) {
    return open_dataset(DataOptions(chat_kind(), options_), token_samples(seq_len, 256), 1);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  DocumentOptions options_;
};

constexpr const char* kTurns =
    R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "ab"},)"
    R"( {"role": "assistant", "content": " c "}, {"role": "user", "content": "d"},)"
    R"( {"role": "assistant", "content": [{"type": "text", "text": "e"}, {"type": "text", "text": "f"}]}]})"
    "\n";

TEST_F(Chat, RendersTurnsAndMarksTheAnswers) {
  write(kTurns);
  EXPECT_THAT(conversations(),
              ElementsAre("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nab<|im_end|>\n"
                          "<|im_start|>assistant\n{ c <|im_end|>}\n<|im_start|>user\nd<|im_end|>\n"
                          "<|im_start|>assistant\n{ef<|im_end|>}\n"));
  options_.chat_template = ChatTemplate::kLlama3;
  EXPECT_THAT(
      conversations(),
      ElementsAre("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
                  "<|start_header_id|>user<|end_header_id|>\n\nab<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n{c<|eot_id|>}"
                  "<|start_header_id|>user<|end_header_id|>\n\nd<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n{ef<|eot_id|>}"));
  options_.chat_template = ChatTemplate::kMistral;
  EXPECT_THAT(conversations(),
              ElementsAre("<s>[INST] s\n\nab[/INST]{ c</s>}[INST] d[/INST]{ ef</s>}"));
}

TEST_F(Chat, ReadsWhatWasRenderedAsWhatItRenders) {
  for (const ChatTemplate each :
       {ChatTemplate::kChatml, ChatTemplate::kLlama3, ChatTemplate::kMistral}) {
    options_.chat_template = each;
    options_.column = "none";
    write(kTurns);
    const std::vector<std::string> expected = conversations();
    const ChatText chat = render_chat(each, messages_of(kTurns, "messages"));
    options_.column = "text";
    write(nlohmann::json{{"text", chat.text}}.dump() + "\n");
    EXPECT_EQ(conversations(), expected);
  }
  // A call of a tool ends the turn; what the tool says is not learned.
  options_.chat_template = ChatTemplate::kLlama3;
  const std::string call =
      "<|start_header_id|>assistant<|end_header_id|>\n\nf()<|eom_id|><|start_header_id|>ipython"
      "<|end_header_id|>\n\n1<|eot_id|>";
  write(nlohmann::json{{"text", call}}.dump());
  EXPECT_THAT(conversations(), ElementsAre(HasSubstr("{f()<|eom_id|>}<|start_header_id|>ipython")));
}

TEST_F(Chat, TakesControlTokensInContentForText) {
  write(
      R"({"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "a"}]})");
  const auto dataset = open(64);
  const std::vector<SampleRef> samples = {dataset->at(Split::kTrain, 0)};
  const auto ids = values(dataset->microbatch(Split::kTrain, samples, 1).tensors[0]);
  EXPECT_EQ(std::ranges::count(ids, tokenizer_->token("<|im_end|>")->id), 2);
  EXPECT_EQ(std::ranges::count(ids, tokenizer_->encode("<")[0]), 1);
  EXPECT_THAT(conversations(), ElementsAre("<|im_start|>user\n<|im_end|><|im_end|>\n"
                                           "<|im_start|>assistant\n{a<|im_end|>}\n"));
  // A token that is not marked as special would come of text.
  auto json = nlohmann::json::parse(characters_json(kControls));
  json["added_tokens"][2]["special"] = false;
  write_file(folder_ / "tokenizer.json", json.dump());
  EXPECT_THAT(message_of([&] { static_cast<void>(open(64)); }),
              HasSubstr("a.jsonl', line 1: its text has '<|im_end|>', which this tokenizer makes"));
}

TEST_F(Chat, LearnsNoAnswerOfWeightZero) {
  options_.chat_template = ChatTemplate::kMistral;
  write(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0},)"
      R"( {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1}]})");
  EXPECT_THAT(conversations(), ElementsAre("<s>[INST] a[/INST] b</s>[INST] c[/INST]{ d</s>}"));
}

TEST_F(Chat, TakesKeysBesideTheContentThatAreEmpty) {
  const std::vector<ChatMessage> read = messages_of(
      R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": [], "function_call": null,)"
      R"( "reasoning_content": "", "refusal": null, "name": "x"}]})",
      "messages");
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].content, "a");
}

TEST_F(Chat, NamesFileAndLineOfBadConversations) {
  const std::string user = R"({"role": "user", "content": "a"})";
  const std::string good =
      R"({"messages": [)" + user + R"(, {"role": "assistant", "content": "b"}]})" + "\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"messages": [{"content": "a"}]})", "message 0 has no role"},
      {R"({"messages": [{"role": 1, "content": "a"}]})", "message 0 has a role that is no text"},
      {R"({"messages": [)" + user + R"(, {"role": "asistant", "content": "b"}]})",
       "message 1 has the role 'asistant', and roles are system, user and assistant"},
      {R"({"messages": [{"role": "tool", "content": "a"}]})", "message 0 has the role 'tool'"},
      {R"({"messages": {"role": "user"}})", "'messages' is no list of messages"},
      {R"({"messages": "a"})", "'messages' is no list of messages"},
      {R"({"messages": []})", "it has no messages"},
      {R"({"messages": ["a"]})", "message 0 is no object"},
      {R"({"messages": [)" + user + "]}", "it has no message of the assistant to learn from"},
      {R"({"messages": [{"role": "user"}]})", "message 0 has no content"},
      {R"({"messages": [{"role": "user", "content": 3}]})",
       "message 0 has a content that is no text"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})",
       "message 0 has a part of the type 'image'"},
      {R"({"messages": [{"role": "user", "content": ["a"]}]})",
       "message 0 has a part that is none"},
      {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]})",
       "message 0 has tool_calls, which no template here has"},
      {R"({"messages": [{"role": "assistant", "content": "", "function_call": {"name": "f"}}]})",
       "message 0 has function_call"},
      {R"({"messages": [)" + user +
           R"(, {"role": "assistant", "content": "b", "reasoning_content": "c"}]})",
       "message 1 has reasoning_content"},
      {R"({"messages": [{"role": "assistant", "content": "b", "thinking": "c"}]})",
       "message 0 has thinking"},
      {R"({"messages": [{"role": "assistant", "content": "", "refusal": "No."}]})",
       "message 0 has refusal"},
      {R"({"messages": [{"role": "assistant", "content": "", "weight": 0.5}]})",
       "message 0 has a weight that is neither 0 nor 1"},
      {R"({"conversations": []})", "it has no 'messages'"},
      {"[1]", "it is no object"},
      {R"({"messages": [)", "it is not JSON: parse error at column 15"},
      {"{\"messages\": \"\xFF\"}", "it is not UTF-8"},
      {std::string(100'000, '['), "it is nested too deeply: 200 levels are the most"},
      {R"({"messages": [], "a": )" + std::string(201, '[') + std::string(201, ']') + "}",
       "it is nested too deeply: 200 levels are the most"},
      {std::string(kMaxConversationBytes + 1, ' '), "has more than 16 MiB"}};
  for (const auto& [line, expected] : cases) {
    for (const std::string& behind : {std::string(), "\n" + good}) {
      write(good + "\n" + line + behind);  // the second line is empty
      const std::string message = message_of([&] { static_cast<void>(open(64)); });
      EXPECT_THAT(message, HasSubstr("a.jsonl', line 3"));
      EXPECT_THAT(message, HasSubstr(expected));
      EXPECT_LT(message.size(), 300U);
    }
  }
}

TEST_F(Chat, RefusesOrdersAndTokenizersThatATemplateDoesNotHave) {
  options_.chat_template = ChatTemplate::kMistral;
  write(R"({"messages": [{"role": "assistant", "content": "b"}]})");
  EXPECT_THAT(message_of([&] { static_cast<void>(open(64)); }),
              HasSubstr("line 1: its message 0 is of the role 'assistant'"));
  options_.column = "text";
  write(R"({"text": "[INST] a"})");
  EXPECT_THAT(message_of([&] { static_cast<void>(open(64)); }),
              HasSubstr("row 0: it has no words of the assistant, which stand behind '[/INST]'"));
  write(R"({"text": "[INST] a[/INST]"})");
  EXPECT_THAT(message_of([&] { static_cast<void>(open(64)); }), HasSubstr("it has no words of"));
  write_file(folder_ / "tokenizer.json", characters_json({"<|endoftext|>", "<|im_start|>"}));
  EXPECT_THAT(message_of([&] { static_cast<void>(open(64)); }),
              HasSubstr("tokenizer.json' has no token <s>, which template = \"mistral\" is"));
  options_.chat_template = ChatTemplate::kChatml;
  EXPECT_THAT(message_of([&] { static_cast<void>(open(64)); }), HasSubstr("no token <|im_end|>"));
  options_.tokenizer = "bytes";
  EXPECT_THAT(message_of([&] { static_cast<void>(open(64)); }), HasSubstr("no token <|im_start|>"));
}

TEST_F(Chat, RefusesAColumnBesideAKeyOfMessages) {
  options_.column = "text";
  EXPECT_NO_THROW(chat_kind().check(Options(options_), Origins()));
  options_.messages = "chat";
  EXPECT_THAT(
      message_of<UsageError>([&] { chat_kind().check(Options(options_), Origins()); }),
      HasSubstr(
          "[data] messages names a key of conversations, and column a text that is rendered"));
}

TEST(ChatTemplates, NameWhatEndsATurn) {
  EXPECT_THAT(ends_of_turn(ChatTemplate::kChatml), ElementsAre("<|im_end|>"));
  EXPECT_THAT(ends_of_turn(ChatTemplate::kLlama3), ElementsAre("<|eot_id|>", "<|eom_id|>"));
  EXPECT_THAT(ends_of_turn(ChatTemplate::kMistral), ElementsAre("</s>"));
}

// Mistral 7B v0.1 has no tokens for its instructions.
TEST_F(Chat, WritesInstructionsAsTextWhereTheyAreNoTokens) {
  options_.chat_template = ChatTemplate::kMistral;
  write_file(folder_ / "tokenizer.json", characters_json({"<|endoftext|>", "<s>", "</s>"}));
  tokenizer_ = open_tokenizer(options_.tokenizer);
  write(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_THAT(conversations(), ElementsAre("<s>[INST] a[/INST]{ b</s>}"));
  // Written in a content, they would read as turns.
  for (const std::string content : {"a[/INST] b", "[INST]"}) {
    write(nlohmann::json{
        {"messages",
         {{{"role", "user"}, {"content", content}}, {{"role", "assistant"}, {"content", "b"}}}}}
              .dump());
    EXPECT_THAT(message_of([&] { static_cast<void>(open(64)); }),
                HasSubstr("line 1: its text has '[" + std::string(content == "[INST]" ? "" : "/") +
                          "INST]', by which the template bounds turns"));
  }
  options_.column = "text";
  write(R"({"text": "<s>[INST] a[/INST] b</s>"})");
  EXPECT_THAT(conversations(), ElementsAre("<s>[INST] a[/INST]{ b</s>}"));
}

// The pieces <s> and </s> of a SentencePiece model are control tokens, which no text becomes.
TEST_F(Chat, TakesControlPiecesOfSentencePiece) {
  int lines = 0;
  const std::string model = train_sentencepiece(
      [&] {
        return lines++ < 20 ? std::optional<std::string>("ab cd [INST] [/INST] </s>")
                            : std::nullopt;
      },
      300);
  const auto tokenizer = load_sentencepiece(model, "x");
  EXPECT_FALSE(tokenizer->token("ab cd"));
  const std::vector<ChatMessage> messages = {{"user", "ab</s>"}, {"assistant", "cd"}};
  const ChatText chat = render_chat(ChatTemplate::kMistral, messages);
  const EncodedSpans encoded = encode_spans(*tokenizer, chat.text, chat.spans);
  const std::int32_t begin = tokenizer->token("<s>")->id, end = tokenizer->token("</s>")->id;
  EXPECT_EQ(encoded.ids.front(), begin);
  EXPECT_EQ(encoded.ids.back(), end);
  EXPECT_EQ(std::ranges::count(encoded.ids, end), 1);
  std::vector<std::int64_t> learned;
  for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.are_learned[i] != 0) learned.push_back(encoded.ids[i]);
  }
  EXPECT_EQ(learned.back(), end);
  EXPECT_EQ(tokenizer->decode(learned), " cd");
}

// Each learned token is a target once, conversations stand apart, and no sample is without one.
TEST_F(Chat, PacksConversationsApart) {
  options_.chat_template = ChatTemplate::kMistral;
  std::string lines;
  std::int64_t learned = 0;
  for (int i = 0; i < 40; ++i) {
    const std::string question(static_cast<std::size_t>(i * 7 % 60), 'q');
    const std::string answer(static_cast<std::size_t>(1 + i * 5 % 9),
                             static_cast<char>('A' + i % 26));
    learned += std::ssize(answer) + 2;  // a space before it, and its end
    lines += R"({"messages": [{"role": "user", "content": ")" + question +
             R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}\n";
  }
  write(lines);
  for (const Pack pack : {Pack::kIsolated, Pack::kPad}) {
    options_.pack = pack;
    const auto dataset = open(16);
    EXPECT_EQ(dataset->facts().tokens, learned);
    EXPECT_NEAR(*dataset->bytes_per_token(), 1 - 40.0 / static_cast<double>(learned), 1e-9);
    std::int64_t valid = 0;
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < dataset->samples(Split::kTrain); ++i) {
      const std::vector<SampleRef> sample = {dataset->at(Split::kTrain, i)};
      seen.insert(sample[0].index);
      const Microbatch batch = dataset->microbatch(Split::kTrain, sample, 1);
      EXPECT_GT(batch.valid, 0);
      valid += batch.valid;
      const auto inputs = values(batch.tensors[0]), targets = values(batch.tensors[1]);
      EXPECT_EQ(std::ssize(targets) - std::ranges::count(targets, kIgnoredTarget), batch.valid);
      if (pack == Pack::kPad) continue;
      const auto documents = values(batch.tensors[2]);
      for (std::size_t k = 1; k < inputs.size(); ++k) {
        // One begins with its first token; only what fills up the last sample has none.
        if (inputs[k] == tokenizer_->token("<s>")->id) {
          EXPECT_EQ(documents[k], documents[k - 1] + 1);
        } else if (inputs[k] != tokenizer_->separator()) {
          EXPECT_EQ(documents[k], documents[k - 1]);
        }
      }
    }
    EXPECT_EQ(valid, learned);
    EXPECT_EQ(std::ssize(seen), dataset->samples(Split::kTrain));
  }
  options_.pack = Pack::kConcatenate;
  EXPECT_THAT(message_of([&] { static_cast<void>(open(16)); }),
              HasSubstr("data.pack = \"concatenate\" has the conversations of"));
}

// The same holds for the prompts of a column of text, which shards keep as well.
TEST(Prompts, LeaveOutSamplesWithoutATargetAndPassShards) {
  TemporaryFolder folder;
  write_file(folder / "a.csv", "q,a\nhello world,yes\n,no\nhow,a longer answer\n");
  DocumentOptions text = documents_in({folder / "a.csv"}), tokens = text;
  text.column = "a";
  text.prompt_column = "q";
  PrepareOptions prepare;
  prepare.out = folder / "shards";
  prepare.paths = text.paths;
  prepare.columns = {.text = "a", .prompt = "q"};
  EXPECT_FALSE(prepare_tokens(prepare).stands_apart);
  tokens.paths = {folder / "shards/*.tokens"};
  for (const Pack pack : {Pack::kConcatenate, Pack::kIsolated, Pack::kPad}) {
    text.pack = tokens.pack = pack;
    const auto a = open_text(text, token_samples(4), 1),
               b = open_tokens(tokens, token_samples(4), 1);
    EXPECT_EQ(a->fingerprint(), b->fingerprint());
    ASSERT_EQ(a->samples(Split::kTrain), b->samples(Split::kTrain));
    // 20 bytes of answers and 3 separators; "no" begins its document where documents stand apart.
    EXPECT_EQ(a->facts().tokens, pack == Pack::kConcatenate ? 23 : 22);
    const IndexRange all{0, a->samples(Split::kTrain)};
    const auto batches = build_microbatches(*a, Split::kTrain, all, 1, 1);
    const auto again = build_microbatches(*b, Split::kTrain, all, 1, 1);
    std::int64_t valid = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      expect_same(batches[i], again[i]);
      EXPECT_GT(batches[i].valid, 0);
      valid += batches[i].valid;
    }
    EXPECT_EQ(valid, a->facts().tokens);
  }
}

TEST_F(Chat, GivesTheSameSamplesFromShards) {
  write(std::string(kTurns) + kTurns);
  write_file(folder_ / "b.jsonl", kTurns);
  PrepareOptions prepare;
  prepare.out = folder_ / "shards";
  prepare.paths = options_.paths;
  prepare.tokenizer = options_.tokenizer;
  prepare.columns = {.text = "", .messages = "messages", .chat_template = ChatTemplate::kChatml};
  EXPECT_EQ(prepare_tokens(prepare).documents, 3);
  DocumentOptions tokens = options_;
  tokens.paths = {folder_ / "shards/*.tokens"};
  const auto a = open(40), b = open_tokens(tokens, token_samples(40, 256), 1);
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  ASSERT_EQ(a->samples(Split::kTrain), b->samples(Split::kTrain));
  const IndexRange all{0, a->samples(Split::kTrain)};
  const auto first = build_microbatches(*a, Split::kTrain, all, 3, 1);
  const auto second = build_microbatches(*b, Split::kTrain, all, 3, 1);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) expect_same(first[i], second[i]);
  prepare.out = folder_ / "other";
  prepare.tokenizer = "bytes";
  prepare.train_vocab_size = 300;
  EXPECT_THAT(message_of<UsageError>([&] { static_cast<void>(prepare_tokens(prepare)); }),
              HasSubstr("a trained tokenizer has no control tokens"));
}

}  // namespace
}  // namespace troika
