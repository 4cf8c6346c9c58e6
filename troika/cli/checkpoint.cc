// The commands `troika checkpoint list`, `verify`, `save` and those of checkpoint_models.h.
#include <fcntl.h>
#include <sys/file.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/base/text_table.h>
#include <troika/base/units.h>
#include <troika/checkpoint/doubt.h>
#include <troika/checkpoint/encryption.h>
#include <troika/cli/checkpoint_models.h>
#include <troika/cli/checkpoint_step.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/observe/log.h>
#include <troika/train/best_checkpoints.h>
#include <troika/train/checkpointer.h>
#include <troika/train/claim.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troika {
namespace {

constexpr std::chrono::milliseconds kPoll{20}, kStorePoll{500};

struct CheckpointArguments {
  std::string run;
  std::string step;  // empty: all
  double timeout = 600;
};

CheckpointFolder folder_of(const std::string& run) {
  if (!is_remote(run) && !std::filesystem::is_directory(run)) {
    throw DataError("there is no run folder " + quote(run),
                    "give the folder that `troika train` named at its end");
  }
  return checkpoints_of(run);
}

std::uint64_t bytes_of_files(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const ManifestShard& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

std::string ranks_of(const Manifest& manifest) {
  const auto found = manifest.provenance.find("ranks");
  return found == manifest.provenance.end() ? "?" : found->second;
}

// The checkpoints of a run for `troika checkpoint list`.
class Listing {
 public:
  explicit Listing(const CheckpointFolder& folder) : folder_(folder) {
    for (const std::int64_t step : folder.steps()) add(step);
    sort_best_first(rated_, metric_);
  }

  // A figure of the held-out side has a column where any checkpoint has it.
  [[nodiscard]] TextRows rows() const {
    TextRows rows = {{"step", "ranks", "files", "size"}};
    const bool is_loss = metric_ == kNoMetric || metric_ == kLossMetric;
    if (!rated_.empty()) rows[0].push_back(is_loss ? "held-out loss" : "held-out " + metric_);
    if (!doubtful_.empty()) rows[0].emplace_back("in doubt");
    rows[0].emplace_back("folder");
    for (const auto& [step, cells] : cells_) {
      std::vector<std::string> row = cells;
      if (!rated_.empty()) row.push_back(figure_text(step));
      if (!doubtful_.empty()) row.emplace_back(doubtful_.contains(step) ? "yes" : "no");
      row.push_back(folder_.step_folder(step).string());
      rows.push_back(std::move(row));
    }
    return rows;
  }
  [[nodiscard]] bool is_empty() const { return cells_.empty(); }
  // Returns what is wrong with the newest that cannot be read; empty where all can.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  // Returns why the newest checkpoint in doubt is; empty where none is.
  [[nodiscard]] const std::string& doubt() const { return doubt_; }

 private:
  void add(std::int64_t step) {
    std::vector<std::string> row = {std::to_string(step)};
    try {
      const Manifest manifest = folder_.read(step);
      row.insert(row.end(), {ranks_of(manifest), std::to_string(manifest.shards.size()),
                             format_bytes(bytes_of_files(manifest))});
      note_doubt(manifest);
      if (const auto figure = held_out_figure(manifest)) {
        if (rated_.empty()) metric_ = metric_of(manifest);
        rated_.push_back({*figure, step});
      }
    } catch (const DataError& error) {
      row.insert(row.end(), {"?", "?", "unreadable"});
      if (problem_.empty()) problem_ = error.what();
    }
    cells_.emplace_back(step, std::move(row));
  }
  void note_doubt(const Manifest& manifest) {
    const std::string doubt = doubt_of(manifest);
    if (doubt.empty()) return;
    if (doubtful_.empty()) doubt_ = doubt;
    doubtful_.insert(manifest.step);
  }
  [[nodiscard]] std::string figure_text(std::int64_t step) const {
    constexpr int kDigits = 4;
    const auto found = std::ranges::find(rated_, step, &RatedStep::step);
    if (found == rated_.end()) return "-";
    return format_fixed(found->figure, kDigits) + (found == rated_.begin() ? " best" : "");
  }

  const CheckpointFolder& folder_;
  std::vector<std::pair<std::int64_t, std::vector<std::string>>> cells_;
  std::vector<RatedStep> rated_;  // the best first
  std::string metric_;
  std::string problem_, doubt_;
  std::set<std::int64_t> doubtful_;
};

int list(const CheckpointArguments& options) {
  const CheckpointFolder folder = folder_of(options.run);
  const Listing listing(folder);
  if (listing.is_empty()) throw DataError("no checkpoint in " + folder.shown());
  std::cout << text_table(listing.rows());
  if (!listing.problem().empty()) log_warning(listing.problem());
  if (!listing.doubt().empty()) log_warning("in doubt: " + listing.doubt());
  return 0;
}

// All problems are told before the command fails.
int verify(const CheckpointArguments& options) {
  const CheckpointFolder folder = folder_of(options.run);
  std::vector<std::int64_t> steps = folder.steps();
  if (!options.step.empty()) steps = {step_asked(options.step, folder)};
  if (steps.empty()) throw DataError("no checkpoint in " + folder.shown());
  std::string problem;
  for (const std::int64_t step : steps) {
    try {
      const Manifest manifest = folder.read(step);
      verify_shards(folder.step_folder(step), manifest);
      std::cout << "step " << step << ": whole, " << manifest.tensors.size() << " tensors, "
                << format_bytes(bytes_of_files(manifest)) << "\n";
    } catch (const MissingKeyError&) {
      throw;  // of which it is not known
    } catch (const DataError& error) {
      std::cout << "step " << step << ": unreadable\n";
      if (problem.empty()) problem = error.what();
    }
  }
  if (problem.empty()) return 0;
  throw DataError(problem, "a run goes on from the newest checkpoint that is whole");
}

// The lock of a run is held as long as it trains (claim.h).
bool is_training(const std::filesystem::path& run) {
  const UniqueFd lock(open(lock_path(run).c_str(), O_RDWR | O_CLOEXEC));
  return lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

int save(const CheckpointArguments& options) {
  const CheckpointFolder folder = folder_of(options.run);
  const std::filesystem::path request = checkpoint_request_path(options.run);
  const auto newest = [&] {
    const std::vector<std::int64_t> steps = folder.steps();
    return steps.empty() ? 0 : steps.front();
  };
  const std::int64_t before = newest();
  if (!is_training(options.run)) {
    throw UsageError("nothing is training in " + quote(options.run), "");
  }
  write_file_atomically(request, "");
  const Deadline deadline = Deadline::in(Seconds(options.timeout));
  while (std::filesystem::exists(request) || newest() <= before) {
    if (!is_training(options.run)) {
      throw UsageError("the run in " + quote(options.run) + " has ended meanwhile", "");
    }
    if (deadline.passed()) {
      throw RendezvousError("no new checkpoint in " + quote(options.run) + " after " +
                                format_duration(options.timeout),
                            "a step may take longer: give --timeout SECONDS");
    }
    std::this_thread::sleep_for(folder.store() ? kStorePoll : kPoll);
  }
  std::cout << folder.step_folder(newest()).string() << "\n";
  return 0;
}

}  // namespace

void add_checkpoint_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<CheckpointArguments>();
  CLI::App* checkpoint = app.add_subcommand(
      "checkpoint", "The checkpoints of a run, and models that leave or come in");
  checkpoint->require_subcommand(1);
  checkpoint->footer("Example:\n  troika checkpoint list runs/quickstart");

  const auto add = [&](const char* name, const char* help, const char* footer,
                       int (*act)(const CheckpointArguments&)) {
    CLI::App* command = checkpoint->add_subcommand(name, help);
    command->add_option("RUN", options->run, "Run folder, or the URL of its checkpoints")
        ->required();
    command->footer(footer);
    command->callback(
        [options, &action, act] { action = [options, act] { return act(*options); }; });
    return command;
  };
  add("list", "List the checkpoints of a run, the newest first",
      "Example:\n  troika checkpoint list runs/quickstart", list);
  add("verify", "Compare the files of checkpoints with their SHA-256",
      "Examples:\n  troika checkpoint verify runs/quickstart\n"
      "  troika checkpoint verify runs/quickstart --step 100",
      verify)
      ->add_option("--step", options->step, "Only the checkpoint of this step, or best");
  add("save", "Ask a run that is training for a checkpoint, and wait for it",
      "Example:\n  troika checkpoint save runs/quickstart", save)
      ->add_option("--timeout", options->timeout, "Seconds to wait")
      ->check(at_least(0.0))
      ->capture_default_str();
  add_checkpoint_models(*checkpoint, action);
}

}  // namespace troika
