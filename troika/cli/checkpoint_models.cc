#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/base/text_table.h>
#include <troika/base/units.h>
#include <troika/checkpoint/reshard.h>
#include <troika/checkpoint/tensor_diff.h>
#include <troika/cli/checkpoint_models.h>
#include <troika/cli/checkpoint_step.h>
#include <troika/cli/help.h>
#include <troika/recipe/recipe_file.h>
#include <troika/recipe/resolve.h>
#include <troika/train/checkpointer.h>
#include <troika/train/empty_folder.h>
#include <troika/train/hub_folder.h>
#include <troika/train/peft_folder.h>
#include <troika/train/program_export.h>
#include <troika/train/run_files.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tensors.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace troika {
namespace {

constexpr int kMostFiles = 65536;
constexpr int kDiffers = 1;

struct ModelArguments {
  std::string from;
  std::string to;
  std::string step;
  std::string file_size = "5G";
  int ranks = 1;
  std::int64_t limit = 20;
  bool model = false;
  bool merge = false;
};

std::uint64_t bytes_of_file_size(const std::string& text) {
  if (const auto bytes = parse_bytes(text)) return static_cast<std::uint64_t>(*bytes);
  throw UsageError("--max-file-size: " + quote(text) + " is no size",
                   "a size is a number of bytes, or of K, M or G: --max-file-size 2G");
}

int export_model(const ModelArguments& options) {
  std::optional<std::int64_t> step;
  if (!options.step.empty()) step = step_asked(options.step, checkpoints_of(options.from));
  const bool has_adapters = recipe_of_export(options.from, step).model.adapter.lora() != nullptr;
  if (options.merge && !has_adapters) {
    throw UsageError("--merge: the run in " + quote(options.from, 200) + " has no adapters",
                     "leave --merge out: its model is whole");
  }
  if (has_adapters && !options.merge) {
    const std::vector<std::string> files = export_to_peft({options.from, options.to, step});
    std::cout << options.to << ": " << join(files, ", ") << "\n";
    return 0;
  }
  if (is_program_path(options.to)) {
    export_program({options.from, options.to, step});
    std::cout << options.to << "\n";
    return 0;
  }
  const std::vector<std::string> files =
      export_to_hub({options.from, options.to, step, bytes_of_file_size(options.file_size)});
  std::cout << options.to << ": " << join(files, ", ") << "\n";
  return 0;
}

int import_model(const ModelArguments& options) {
  const HubImport result = import_from_hub(options.from, options.to);
  std::cout << options.to << ": " << result.model << "\n";
  if (!result.untied.empty()) std::cout << result.untied << "\n";
  if (!result.saved_tokenizer.empty()) {
    std::cout << result.saved_tokenizer
              << " is kept for export; troika trains on ids: data.kind = \"tokens\"\n";
  }
  return 0;
}

std::int64_t step_to_reshard(const ModelArguments& options, const CheckpointFolder& folder) {
  if (!options.step.empty()) return step_asked(options.step, folder);
  const std::vector<std::int64_t> steps = folder.steps();
  if (!steps.empty()) return steps.front();
  throw DataError("no checkpoint in " + folder.shown(),
                  "give the folder that `troika train` named at its end");
}

// The files that a run goes on with, beside its checkpoints.
void copy_run_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const char* name : {"recipe.toml", "data.json", "metrics.jsonl", "best.safetensors",
                           "best.safetensors.doubt"}) {
    std::error_code error;
    if (!std::filesystem::exists(from / name, error)) continue;
    std::filesystem::copy_file(from / name, to / name, error);
    if (error) throw_storage_error("write", to / name, error.value());
  }
}

// The recipe of the run at `from`; nothing where neither the run nor its checkpoint has one.
std::optional<Recipe> recipe_at(const std::string& from, const Manifest& manifest) {
  std::error_code ignored;
  if (!is_remote(from) && std::filesystem::exists(recipe_path(from), ignored)) {
    return recipe_of_run(from);
  }
  if (manifest.recipe.empty()) return std::nullopt;
  return parse_recipe(manifest.recipe, "the recipe of the checkpoint").recipe;
}

// The recipe of a run of its own in the folder `out`, with its checkpoints inside. A mirror that
// has copies under the same name stays the other run's. Throws UsageError where the folder's name
// can be no run's.
Recipe recipe_in(const std::filesystem::path& out, const Recipe& of_other) {
  std::filesystem::path folder = (out / "").lexically_normal().parent_path();
  if (folder.empty() || folder.filename().native().starts_with(".")) {
    folder = std::filesystem::absolute(out / "").lexically_normal().parent_path();
  }
  Recipe recipe = of_other;
  recipe.name = folder.filename().string();
  recipe.runs_dir = folder.has_parent_path() ? folder.parent_path().string() : ".";
  recipe.checkpoint.folder = kRunFolder;
  if (recipe.name == of_other.name) recipe.checkpoint.mirror = kNoMirror;
  return parse_recipe(to_toml(recipe), recipe_path(out).string()).recipe;
}

// The number of files is no number of ranks: those that go on are as many as the axes say.
std::string ranks_flag(const Recipe& recipe) {
  if (recipe.sync.kind().servers(recipe.sync.options())) return "";  // which are ranks besides
  return " --ranks " + std::to_string(smallest_world(recipe));
}

int reshard(const ModelArguments& options) {
  const CheckpointFolder from = checkpoints_of(options.from), to = checkpoints_of(options.to);
  const std::int64_t step = step_to_reshard(options, from);
  const Manifest before = from.read(step);
  const std::optional<Recipe> other = recipe_at(options.from, before);
  std::optional<Recipe> recipe;
  if (other) recipe = recipe_in(options.to, *other);
  make_empty_folder(options.to);
  make_folders(to.path());
  const Manifest manifest = reshard_checkpoint(from, step, to, options.ranks);
  if (is_remote(options.from)) {
    download_run_files(*from.store(), step, options.to);
  } else {
    copy_run_files(options.from, options.to);
  }
  std::cout << to.step_folder(step).string() << ": "
            << plural(static_cast<std::int64_t>(before.shards.size()), "file") << " before, "
            << manifest.shards.size() << " now, all compared\n";
  if (!recipe) return 0;
  write_recipe(*recipe, {before.provenance.begin(), before.provenance.end()});
  std::cout << "go on with: troika train " << recipe_path(options.to).string()
            << ranks_flag(*recipe) << "\n";
  if (recipe->checkpoint.mirror != other->checkpoint.mirror) {
    std::cout << "its recipe has checkpoint.mirror = \"none\": the copies there are those of "
              << quote(options.from) << "\n";
  }
  return 0;
}

std::string short_number(double value) {
  constexpr int kDigits = 3;
  std::ostringstream text;
  text.precision(kDigits);
  text << value;
  return text.str();
}

// Names those of the model, and counts the others.
void print_only_in(const std::string& where, const std::vector<std::string>& names,
                   std::int64_t limit) {
  std::vector<std::string> of_model;
  std::int64_t of_optimizer = 0, of_ranks = 0;
  for (const std::string& name : names) {
    const TensorOwner owner = owner_of(name);
    if (owner == TensorOwner::kModel) of_model.push_back(name);
    of_optimizer += owner == TensorOwner::kOptimizer ? 1 : 0;
    of_ranks += owner == TensorOwner::kDataRank ? 1 : 0;
  }
  const std::string start = "only in " + where + ": ";
  if (!of_model.empty()) {
    const auto shown = std::min<std::size_t>(of_model.size(), static_cast<std::size_t>(limit));
    std::cout << start << join(std::span(of_model).first(shown), ", ");
    if (shown < of_model.size()) std::cout << ", and " << of_model.size() - shown << " more";
    std::cout << "\n";
  }
  if (of_optimizer > 0) {
    std::cout << start << plural(of_optimizer, "tensor") << " of the optimiser\n";
  }
  if (of_ranks > 0) std::cout << start << plural(of_ranks, "tensor") << " of single data ranks\n";
}

void print_differences(const TensorDiff& diff, std::int64_t limit) {
  TextRows rows = {{"tensor", "largest difference", "largest value"}};
  for (const TensorDifference& each : diff.differing) {
    if (static_cast<std::int64_t>(rows.size()) > limit) break;
    if (each.unlike.empty()) {
      rows.push_back({each.name, short_number(each.largest), short_number(each.largest_value)});
    } else {
      rows.push_back({each.name, each.unlike});
    }
  }
  if (rows.size() > 1) std::cout << text_table(rows);
  const std::size_t left_out = diff.differing.size() + 1 - rows.size();
  if (left_out > 0) std::cout << "and " << left_out << " more; --limit shows them\n";
}

// The step to compare; nothing where `place` is no run.
std::optional<std::int64_t> step_to_compare(const std::string& step, const std::string& place) {
  namespace fs = std::filesystem;
  if (step.empty()) return std::nullopt;
  const fs::path path = place;
  const bool is_run = is_remote(place) ? !is_checkpoint(path) : is_run_folder(path);
  if (!is_run) return std::nullopt;
  return step_asked(step, checkpoints_of(path));
}

// The path of what is compared: as the user has given it, where that is all of it.
std::string compared_path(const TensorSource& source, const std::string& place) {
  std::error_code ignored;
  const bool is_given =
      !is_remote(place) && std::filesystem::weakly_canonical(place, ignored) == source.path();
  return is_given ? place : source.path().string();
}

int diff(const ModelArguments& options) {
  const auto open = [&](const std::string& place) {
    return open_any_tensors(place, step_to_compare(options.step, place));
  };
  const auto a = open(options.from), b = open(options.to);
  const TensorDiff diff =
      compare_tensors(*a, *b, options.model ? DiffScope::kModel : DiffScope::kAll);
  std::cout << "compared: " << compared_path(*a, options.from) << ", "
            << compared_path(*b, options.to) << "\n";
  print_differences(diff, options.limit);
  print_only_in(options.from, diff.only_in_a, options.limit);
  print_only_in(options.to, diff.only_in_b, options.limit);
  std::cout << plural(static_cast<std::int64_t>(diff.same), "tensor") << " the same, "
            << diff.differing.size() << " different\n";
  return diff.is_same() ? 0 : kDiffers;
}

struct Positional {
  const char* name;
  const char* help;
};

class Subcommands {
 public:
  Subcommands(CLI::App& checkpoint, Action& action) : checkpoint_(checkpoint), action_(action) {}

  // Two positionals, and what `act` does with them.
  CLI::App* add(const char* name, const char* help, Positional from, Positional to,
                const char* footer, int (*act)(const ModelArguments&)) {
    CLI::App* command = checkpoint_.add_subcommand(name, help);
    options_ = std::make_shared<ModelArguments>();
    command->add_option(from.name, options_->from, from.help)->required();
    command->add_option(to.name, options_->to, to.help)->required();
    command->footer(footer);
    command->callback([options = options_, &action = action_, act] {
      action = [options, act] { return act(*options); };
    });
    return command;
  }
  void add_step(CLI::App* command) const {
    command->add_option("--step", options_->step, kStepHelp)->type_name("STEP");
  }
  [[nodiscard]] ModelArguments& options() const { return *options_; }

 private:
  CLI::App& checkpoint_;
  Action& action_;
  std::shared_ptr<ModelArguments> options_;  // of the command that was added last
};

constexpr const char* kExportExamples =
    "Examples:\n"
    "  troika checkpoint export runs/quickstart exported\n"
    "  troika checkpoint export runs/quickstart exported --step 100 --max-file-size 2G\n"
    "  troika checkpoint export runs/quickstart exported --step best\n"
    "  troika checkpoint export runs/reviews reviews.pt2\n"
    "  troika checkpoint export runs/adapted adapter\n"
    "  troika checkpoint export runs/adapted merged --merge\n\n"
    "AutoModelForCausalLM.from_pretrained(\"exported\") loads it. A gpt with rmsnorm, rope and "
    "swiglu\n"
    "leaves as a Llama, with qkv_bias as a Qwen2, with qk_norm as a Qwen3; one with layernorm,\n"
    "learned positions, a GELU and biases as a GPT-2.\n"
    "A network that Python has written leaves as a file that ends in .pt2 (torch.export.load) or "
    ".pt. A run with [adapter] leaves as an adapter of peft: PeftModel.from_pretrained(model, "
    "\"adapter\").";
constexpr const char* kImportExamples =
    "Example:\n"
    "  troika checkpoint import TinyLlama-1.1B runs/llama\n\n"
    "FOLDER is a Llama, Mistral, Qwen2, Qwen3 or GPT-2, as save_pretrained() writes it, with\n"
    "safetensors. OUT becomes a\n"
    "folder with recipe.toml, model.safetensors and the tokenizer, as a run leaves it.";
constexpr const char* kDiffExamples =
    "Examples:\n"
    "  troika checkpoint diff runs/a runs/b\n"
    "  troika checkpoint diff runs/a/model.safetensors runs/a/checkpoints/step-00000100 --model\n\n"
    "A and B are runs, folders of a checkpoint's step or of Hugging Face's, or safetensors files.\n"
    "The exit status is 1 where they differ.";
constexpr const char* kReshardExamples =
    "Example:\n"
    "  troika checkpoint reshard runs/large packed --ranks 4\n\n"
    "A checkpoint in any number of files is read by any number of ranks: this is for those who "
    "move\n"
    "or keep them. OUT becomes the folder of a run of its own with that checkpoint.";

}  // namespace

void add_checkpoint_models(CLI::App& checkpoint, Action& action) {
  constexpr Positional kOut{"OUT", "A new folder"};
  Subcommands commands(checkpoint, action);
  CLI::App* command = commands.add(
      "export", "Write a run's model for Python: for Hugging Face's libraries, or as its program",
      {"RUN", "Run folder, or the URL of its checkpoints"}, kOut, kExportExamples, export_model);
  commands.add_step(command);
  command
      ->add_option("--max-file-size", commands.options().file_size,
                   "Cut larger models into files of so many bytes")
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_flag("--merge", commands.options().merge,
                    "Add the adapters of a run to its model, and write that");
  commands.add("import", "Read a model of Hugging Face's libraries",
               {"FOLDER", "What save_pretrained() has written"}, kOut, kImportExamples,
               import_model);
  command = commands.add("diff", "Say where the tensors of two runs, checkpoints or files differ",
                         {"A", "A run, checkpoint or file"}, {"B", "Another"}, kDiffExamples, diff);
  commands.add_step(command);
  command->add_flag("--model", commands.options().model,
                    "Compare the model alone, not the state of the optimiser");
  command->add_option("--limit", commands.options().limit, "The most tensors to name")
      ->check(at_least(std::int64_t{1}))
      ->capture_default_str();
  command = commands.add("reshard", "Write a checkpoint again in another number of files",
                         {"RUN", "Run folder, or the URL of its checkpoints"}, kOut,
                         kReshardExamples, reshard);
  commands.add_step(command);
  command->add_option("--ranks", commands.options().ranks, "Files, one as of each rank")
      ->required()
      ->check(between(1, kMostFiles));
}

}  // namespace troika
