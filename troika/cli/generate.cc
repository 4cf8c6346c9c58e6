// The command `troika generate`.
#include <troika/cli/chat_options.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/inference/generate.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

namespace troika {
namespace {

struct GenerateArguments {
  std::string run;
  std::string prompt;
  std::string says, chat_template;  // of a user; empty: there is a prompt
  std::string tokenizer;
  std::string device;
  SamplingOptions sampling;
};

int generate(const GenerateArguments& options) {
  const Generator generator(options.run, options.tokenizer, options.device);
  const auto show = [](std::string_view piece) { std::cout << piece << std::flush; };
  if (options.chat_template.empty()) {
    generator.generate(options.prompt, options.sampling, show);
  } else {
    generator.answer(chat_template_named(options.chat_template), options.says, options.sampling,
                     show);
  }
  std::cout << "\n";
  return 0;
}

}  // namespace

void add_generate_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "Sample text from the model of a run");
  auto options = std::make_shared<GenerateArguments>();
  command->add_option("RUN", options->run, "Run folder, as `troika train` names it")->required();
  CLI::Option* const prompt = command->add_option(
      "--prompt", options->prompt, "Text to go on from; without it, a document begins");
  CLI::Option* const chat =
      command->add_option("--chat", options->says, "What a user says, for the assistant to answer")
          ->excludes(prompt);
  add_template_option(*command, options->chat_template,
                      "The template that the model has learned conversations by")
      ->needs(chat);
  chat->needs("--template");
  command->add_option("--tokens", options->sampling.tokens, "How many tokens to add")
      ->check(between(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  command
      ->add_option("--temperature", options->sampling.temperature,
                   "Spread of the choice; 0 always takes the likeliest token")
      ->check(between(0.0, 100.0))
      ->capture_default_str();
  command
      ->add_option("--top-k", options->sampling.top_k,
                   "Choose among this many likeliest tokens; 0 among all")
      ->check(at_least(std::int64_t{0}))
      ->capture_default_str();
  command->add_option("--seed", options->sampling.seed, "The same seed gives the same text")
      ->capture_default_str();
  command
      ->add_option("--tokenizer", options->tokenizer,
                   "The tokenizer of the training data, if it has moved since")
      ->type_name("FILE");
  command
      ->add_option(
          "--device", options->device,
          "What to compute on: auto, cpu, cuda or cuda:1 (default: the run's train.device)")
      ->type_name("DEVICE");
  command->footer(
      "Examples:\n"
      "  troika generate runs/quickstart --prompt \"class \"\n"
      "  troika generate runs/quickstart --prompt \"template <\" --tokens 400 --temperature 0.6\n"
      "  troika generate runs/assistant --chat \"Capital of Peru?\" --template chatml");
  command->callback([options, &action] { action = [options] { return generate(*options); }; });
}

}  // namespace troika
