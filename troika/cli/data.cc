// The command `troika data prepare`.
#include <pthread.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/cli/chat_options.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/data/prepare.h>
#include <troika/observe/log.h>
#include <troika/observe/progress.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

namespace troika {
namespace {

struct DataArguments {
  PrepareOptions prepare;
  std::string chat_template;  // empty: these are no conversations
  std::string messages = "messages";
  bool train_tokenizer = false;
  std::int64_t vocab_size = 0;
};

// While it lives, Ctrl-C and SIGTERM wait to be asked for, so that the work can remove what it has
// begun to write.
class DeferredSignals {
 public:
  DeferredSignals() {
    ::sigemptyset(&watched_);
    ::sigaddset(&watched_, SIGINT);
    ::sigaddset(&watched_, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &watched_, &before_);
  }
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;
  ~DeferredSignals() {
    // Taken, so that unblocking does not end the process before it has reported.
    const timespec at_once{};
    while (::sigtimedwait(&watched_, nullptr, &at_once) > 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  // Throws InterruptedError if one has come.
  void check() const {
    sigset_t pending;
    ::sigpending(&pending);
    if (::sigismember(&pending, SIGINT) == 1 || ::sigismember(&pending, SIGTERM) == 1) {
      throw InterruptedError("interrupted: nothing was written");
    }
  }

 private:
  sigset_t watched_{};
  sigset_t before_{};
};

// The progress bar and the check for Ctrl-C, from the first call on.
class TokenisingReporter {
 public:
  void operator()(std::int64_t done, std::int64_t total) {
    if (!signals_) signals_.emplace();
    signals_->check();
    if (!bar_) {
      bar_.emplace(std::cerr, "tokenising", "bytes", total, progress_options(STDERR_FILENO));
    }
    bar_->add(done - done_);
    done_ = done;
    if (done == total) bar_->finish();
  }

 private:
  std::optional<DeferredSignals> signals_;
  std::optional<CountProgress> bar_;
  std::int64_t done_ = 0;
};

void print_report(const PrepareReport& report) {
  configure_log({});
  for (const std::string& warning : report.warnings) log_warning(warning);
  const std::string folder = report.shards.front().parent_path().string();
  std::cout << folder << ": " << format_count(static_cast<double>(report.documents))
            << " documents, " << format_bytes(static_cast<std::uint64_t>(report.text_bytes))
            << " of text, " << format_count(static_cast<double>(report.tokens)) << " tokens in "
            << report.shards.size() << (report.shards.size() == 1 ? " shard" : " shards")
            << "\n\nTo train on it, write into the recipe:\n"
            << "  [model]\n  vocab_size = " << report.vocab_size << "\n  [data]\n"
            << "  kind = \"tokens\"\n  paths = [\"" << folder << "/*.tokens\"]\n";
  if (report.stands_apart) std::cout << "  pack = \"isolated\"\n";
  if (!report.tokenizer.empty()) {
    std::cout << "  tokenizer = \"" << report.tokenizer.string() << "\"\n";
  }
}

int prepare(const DataArguments& options) {
  PrepareOptions prepare = options.prepare;
  if (!options.chat_template.empty()) {
    prepare.columns.chat_template = chat_template_named(options.chat_template);
    if (prepare.columns.text.empty()) prepare.columns.messages = options.messages;
  }
  if (options.train_tokenizer != (options.vocab_size > 0)) {
    throw UsageError(options.train_tokenizer ? "--train-tokenizer needs --vocab-size"
                                             : "--vocab-size needs --train-tokenizer",
                     "for example: --train-tokenizer --vocab-size 8192");
  }
  if (options.train_tokenizer) {
    prepare.train_vocab_size = options.vocab_size;
    std::cerr << "training a tokenizer of " << options.vocab_size << " ids\n";
  }
  TokenisingReporter reporter;
  print_report(prepare_tokens(
      prepare, [&reporter](std::int64_t done, std::int64_t total) { reporter(done, total); }));
  return 0;
}

}  // namespace

void add_data_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<DataArguments>();
  CLI::App* data = app.add_subcommand("data", "Work with training data");
  data->require_subcommand(1);
  data->footer("Example:\n  troika data prepare corpus 'text/**/*.txt'");

  CLI::App* command =
      data->add_subcommand("prepare", "Tokenise text into shards that every rank maps into memory");
  command
      ->add_option("OUT", options->prepare.out,
                   "The folder to make; if it is there, it must be empty")
      ->required();
  command
      ->add_option("PATHS", options->prepare.paths,
                   "Text files and globs; ** descends into folders (quote it from the shell)")
      ->required();
  command
      ->add_option("--tokenizer", options->prepare.tokenizer,
                   "\"bytes\", a SentencePiece model file, or a tokenizer.json")
      ->type_name("bytes|FILE")
      ->capture_default_str();
  command
      ->add_option(
          "--column", options->prepare.columns.text,
          "The paths name tables (Parquet, CSV, JSON Lines, Arrow); the rows of this column "
          "are the documents")
      ->type_name("NAME");
  CLI::Option* const column = command->get_option("--column");
  command
      ->add_option("--prompt-column", options->prepare.columns.prompt,
                   "Text of the same rows that stands before theirs, and is not to be learned")
      ->type_name("NAME")
      ->needs(column);
  add_template_option(*command, options->chat_template,
                      "The paths name conversations in JSON Lines, rendered by this template; with "
                      "--column that column is rendered already")
      ->excludes(command->get_option("--prompt-column"));
  command->add_option("--messages", options->messages, "The key of a conversation's messages")
      ->type_name("NAME")
      ->needs("--template")
      ->excludes(column)
      ->capture_default_str();
  command->add_flag("--train-tokenizer", options->train_tokenizer,
                    "First train a SentencePiece byte-pair model on the text, and use it");
  command->add_option("--vocab-size", options->vocab_size, "Ids of the trained model")
      ->check(at_least(std::int64_t{1}));
  command
      ->add_option("--shard-tokens", options->prepare.shard_tokens,
                   "Close a shard at this many tokens")
      ->check(at_least(std::int64_t{1}))
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  troika data prepare corpus 'text/**/*.txt'\n"
      "  troika data prepare corpus 'src/**/*.cc' --train-tokenizer --vocab-size 8192\n"
      "  troika data prepare corpus 'dataset/*.parquet' --column text\n"
      "  troika data prepare chats 'chats/*.jsonl' --template chatml --tokenizer "
      "model/tokenizer.json\n"
      "  troika data prepare more 'more/**/*.cc' --tokenizer corpus/tokenizer.model");
  command->callback([options, &action] { action = [options] { return prepare(*options); }; });
}

}  // namespace troika
