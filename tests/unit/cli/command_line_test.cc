// The frame of the command: what is printed where, exit codes, and the completion scripts.
#include <troika/base/error.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/cli/run.h>

#include <gmock/gmock.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>

namespace troika {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

// The real command line without the doctor, and a subcommand that fails as it is told.
Outcome run(const std::vector<std::string>& words, const Action& failing = {}) {
  CLI::App app("Test", "troika");
  app.formatter(help_formatter());
  app.set_version_flag("--version", "1.2.3");
  app.require_subcommand(1);
  Action action;
  add_recipe_command(app, action);
  add_completion_command(app, action);
  add_train_command(app, action);
  add_generate_command(app, action);
  add_data_command(app, action);
  add_launch_command(app, action);
  app.add_subcommand("fail", "Fail")->callback([&] { action = failing; });
  std::vector<const char*> argv = {"troika"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = run_command_line(app, action, static_cast<int>(argv.size()), argv.data());
  return {code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

void expect_usage_error(const std::vector<std::string>& words, const std::string& message) {
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, StartsWith("troika: " + message + "\n"));
}

TEST(CommandLine, SuggestsTheNearestWord) {
  expect_usage_error({"recpie"}, "unknown subcommand 'recpie'; did you mean 'recipe'?");
  expect_usage_error({"recipe", "chekc", "x"},
                     "recipe: unknown subcommand 'chekc'; did you mean 'check'?");
  expect_usage_error({"recipe", "--default"},
                     "recipe: unknown flag '--default'; did you mean '--defaults'?");
  expect_usage_error({"recipe", "check", "x", "--sett=a"},
                     "recipe check: unknown flag '--sett=a'; did you mean '--set'?");
}

TEST(CommandLine, NamesWhatIsMissing) {
  expect_usage_error({},
                     "a subcommand is missing: recipe, completion, train, generate, data, launch, "
                     "fail");
  expect_usage_error({"recipe"},
                     "recipe: a subcommand or flag is missing: check, show, --defaults");
  expect_usage_error({"recipe", "check"}, "recipe check: FILE is required");
  expect_usage_error({"recipe", "check", "a", "b"}, "recipe check: unexpected argument 'b'");
}

TEST(CommandLine, SaysWhatIsWrongWithAValue) {
  expect_usage_error({"train", "x", "--ranks", "x"}, "train: --ranks x is no whole number");
  expect_usage_error({"train", "x", "--ranks", "1.5"}, "train: --ranks 1.5 is no whole number");
  expect_usage_error({"train", "x", "--nproc-per-node", "y"},
                     "train: --ranks-per-node y is no whole number");
  expect_usage_error({"train", "x", "--ranks", "99999999999"},
                     "train: --ranks 99999999999 is too large a number");
  expect_usage_error({"train", "x", "--ranks"}, "train: --ranks needs a value");
  expect_usage_error({"train", "x", "--ranks", "1", "--ranks", "2"},
                     "train: --ranks is given more than once");
  expect_usage_error({"train", "x", "--resume", "--overwrite"},
                     "train: --overwrite and --resume exclude each other");
  expect_usage_error({"generate", "x", "--tokens", "0"},
                     "generate: --tokens: 0 is not between 1 and 1048576");
  expect_usage_error({"generate", "x", "--tokens", "many"},
                     "generate: --tokens many is no whole number");
  expect_usage_error({"generate", "x", "--temperature", "hot"},
                     "generate: --temperature hot is no number");
  expect_usage_error({"generate", "x", "--top-k", "-1"}, "generate: --top-k: -1 is less than 0");
  expect_usage_error({"data", "prepare", "x", "y", "--shard-tokens", "0"},
                     "data prepare: --shard-tokens: 0 is less than 1");
  expect_usage_error({"data", "prepare", "x", "y", "--column", "a", "--prompt-column", "b",
                      "--template", "chatml"},
                     "data prepare: --prompt-column and --template exclude each other");
}

// The "--" in front of the program is no flag, and no value of one.
TEST(CommandLine, SaysWhatIsWrongInFrontOfAProgram) {
  const auto refused = [](std::vector<std::string> words, const std::string& message) {
    words.insert(words.begin(), "launch");
    words.insert(words.end(), {"--", "true"});
    expect_usage_error(words, "launch: " + message);
  };
  refused({"--ranks", "two"}, "--ranks two is no whole number");
  refused({"--ranks=two"}, "--ranks two is no whole number");
  refused({"--ranks", "1.5"}, "--ranks 1.5 is no whole number");
  refused({"--rendezvous-timeout", "abc"}, "--rendezvous-timeout abc is no number");
  refused({"--rank", "2"}, "unknown flag '--rank'; did you mean '--ranks'?");
  for (const std::string value : {"inf", "nan", "-5", "0", "1e8"}) {
    refused({"--rendezvous-timeout", value},
            "--rendezvous-timeout: " + value + " is not in (0, 10000000]");
  }
  refused({"--recorders"}, "--recorders needs a value");
  refused({"--ranks"}, "--ranks needs a value");
  expect_usage_error({"launch", "--ranks", "2", "--"}, "launch: PROGRAM is required");
  expect_usage_error({"launch", "--recorders", "--"}, "launch: --recorders needs a value");
}

TEST(CommandLine, HelpIsInOurWords) {
  const std::string train = run({"train", "--help"}).out;
  EXPECT_THAT(train, HasSubstr("Usage: troika train [OPTIONS] FILE\n"));
  EXPECT_THAT(train, HasSubstr("  --ranks N  "));
  EXPECT_THAT(train, HasSubstr("  --nodes, --nnodes N  "));
  EXPECT_THAT(train, HasSubstr("  --rendezvous, --rdzv-endpoint HOST:PORT\n"));
  EXPECT_THAT(train, HasSubstr("  --set KEY=VALUE  "));
  const std::string generate = run({"generate", "--help"}).out;
  EXPECT_THAT(generate, HasSubstr("  --tokens N "));
  EXPECT_THAT(generate, HasSubstr("How many tokens to add (default: 200)\n"));
  for (const std::string& help :
       {train, generate, run({"data", "prepare", "--help"}).out, run({"recipe", "--help"}).out,
        run({"recipe", "check", "--help"}).out, run({"completion", "--help"}).out}) {
    for (const std::string leak :
         {"REQUIRED", "Excludes", "Positionals", "INT", "FLOAT", " in [", "POSITIVE", "\n\n\n"}) {
      EXPECT_THAT(help, Not(HasSubstr(leak)));
    }
  }
}

TEST(CommandLine, HelpAndVersionGoToStdout) {
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, "1.2.3\n");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"recipe", "--help"},
                                                {"recipe", "check", "--help"},
                                                {"completion", "--help"}}) {
    const Outcome help = run(words);
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr("Example"));
    EXPECT_THAT(help.err, IsEmpty());
  }
}

TEST(CommandLine, AnErrorIsALineAHintAndItsCode) {
  const Outcome outcome = run({"fail"}, []() -> int { throw StorageError("full", "make room"); });
  EXPECT_EQ(outcome.code, 7);
  EXPECT_EQ(outcome.err, "troika: full\nhint: make room\n");
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_EQ(run({"fail"}, []() -> int { throw DataError("gone"); }).err, "troika: gone\n");
}

TEST(CommandLine, OtherExceptionsAreInternalErrors) {
  const Outcome outcome = run({"fail"}, []() -> int { throw std::runtime_error("odd"); });
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, StartsWith("troika: internal error: odd\n"));
  EXPECT_THAT(run({"fail"}, []() -> int { throw std::bad_alloc(); }).err,
              StartsWith("troika: out of memory\n"));
}

TEST(CommandLine, TheActionDecidesTheCode) {
  EXPECT_EQ(run({"fail"}, [] { return 75; }).code, 75);
  EXPECT_EQ(run({"fail"}).code, 1);  // a subcommand that set no action
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "troika-cli-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

TEST(RecipeCommand, ChecksAndShowsAFile) {
  const TemporaryFolder folder;
  const Outcome defaults = run({"recipe", "--defaults"});
  ASSERT_EQ(defaults.code, 0);
  const std::string file = folder.write("r.toml", defaults.out);

  const Outcome checked = run({"recipe", "check", file, "--set", "model.layers=2"});
  EXPECT_EQ(checked.code, 0);
  EXPECT_EQ(checked.out, file + ": valid recipe 'quickstart'\n");
  EXPECT_THAT(checked.err, HasSubstr("troika: warning: " + file));

  const Outcome shown = run({"recipe", "show", file, "--set", "model.layers=2", "--set", "name=x"});
  EXPECT_THAT(shown.out, HasSubstr("name = \"x\"\n"));
  EXPECT_THAT(shown.out, HasSubstr("\nlayers = 2\n"));

  const Outcome wrong = run({"recipe", "check", file, "--set", "model.layer=2"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err,
              StartsWith("troika: --set model.layer=2: unknown key 'model.layer'; did you "
                         "mean 'model.layers'?\nhint: "));
  EXPECT_THAT(wrong.out, IsEmpty());
}

// What bash offers for a half-typed line.
std::string bash_offers(const std::string& script_file, const std::string& words, int at) {
  const std::string command = "bash --norc -c 'source " + script_file + "; COMP_WORDS=(" + words +
                              "); COMP_CWORD=" + std::to_string(at) +
                              "; _troika 2>/dev/null; echo \"${COMPREPLY[*]}\"'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get())) {
    text += static_cast<char>(c);
  }
  return text;
}

TEST(Completion, BashOffersWhatTheCommandLineHas) {
  const TemporaryFolder folder;
  const Outcome script = run({"completion", "bash"});
  ASSERT_EQ(script.code, 0);
  const std::string file = folder.write("troika.bash", script.out);
  EXPECT_EQ(bash_offers(file, "troika rec", 1), "recipe\n");
  EXPECT_EQ(bash_offers(file, "troika recipe \"\"", 2), "check show --help --defaults\n");
  EXPECT_EQ(bash_offers(file, "troika recipe check --s", 3), "--set\n");
  EXPECT_EQ(bash_offers(file, "troika recipe check x --set model.tied", 5),
            "model.tied_embeddings=\n");
}

TEST(Completion, EveryShellHasEverySubcommandAndFlag) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const std::string script = run({"completion", shell}).out;
    for (const std::string word : {"recipe", "check", "completion", "defaults", "model.layers="}) {
      EXPECT_THAT(script, HasSubstr(word)) << shell;
    }
    EXPECT_EQ(script.find("--docs"), std::string::npos) << "a hidden flag is offered";
  }
  EXPECT_EQ(run({"completion", "tcsh"}).code, 2);
}

}  // namespace
}  // namespace troika
