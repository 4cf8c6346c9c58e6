#include <ATen/ATen.h>
#include <fnmatch.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/checkpoint/replicated_read.h>
#include <troika/checkpoint/tensors.h>
#include <troika/observe/log.h>
#include <troika/session/consensus.h>
#include <troika/train/checkpointer.h>
#include <troika/train/initial_values.h>
#include <troika/train/run_folder.h>
#include <troika/train/saved_model.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

namespace troika {
namespace {

namespace fs = std::filesystem;

// The model's name of a tensor that is called `name` there; nothing where the pair is of others.
std::optional<std::string> renamed(const RenamedTensors& rename, const std::string& name) {
  if (!rename.match.ends_with('*')) {
    return name == rename.match ? std::optional(rename.to) : std::nullopt;
  }
  const std::size_t prefix = rename.match.size() - 1;
  if (name.compare(0, prefix, rename.match, 0, prefix) != 0) return std::nullopt;
  return rename.to.substr(0, rename.to.size() - 1) + name.substr(prefix);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

// "'a', 'b', 'c' and 12 more".
std::string first_few(const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 3;
  const std::size_t shown = std::min(kShown, items.size());
  std::string text = join(std::span(items).first(shown), ", ");
  if (items.size() > shown) text += " and " + std::to_string(items.size() - shown) + " more";
  return text;
}

// Pairs the names of a model with those of a source, and collects what does not go together.
class Matcher {
 public:
  Matcher(const InitialValueOptions& options, const std::map<std::string, ManifestTensor>& saved)
      : options_(options), used_(options.ignore.size() + options.rename.size(), false) {
    for (const auto& [name, tensor] : saved) {
      const std::string of_model = rename(name);
      if (is_ignored(of_model)) continue;
      if (by_model_name_.emplace(of_model, Saved{name, &tensor}).second) continue;
      twice_.push_back(quote(name) + " and " + quote(by_model_name_.at(of_model).name));
    }
  }

  std::map<std::string, std::string> pairs_for(std::span<const StateSpec> model) {
    std::map<std::string, std::string> pairs;
    for (const StateSpec& spec : model) {
      if (is_ignored(spec.name)) continue;
      const auto found = by_model_name_.find(spec.name);
      if (found == by_model_name_.end()) {
        missing_.push_back(quote(spec.name));
        continue;
      }
      check_alike(spec, *found->second.tensor);
      pairs.emplace(spec.name, found->second.name);
      by_model_name_.erase(found);
    }
    for (const auto& [name, rest] : by_model_name_) unexpected_.push_back(quote(rest.name));
    return pairs;
  }

  // What does not go together; empty where all does.
  [[nodiscard]] std::string problems(ValuesOf of) const {
    std::vector<std::string> parts;
    const auto add = [&](const char* what, const std::vector<std::string>& items) {
      if (!items.empty()) parts.push_back(what + first_few(items));
    };
    add("missing ", missing_);
    add("unexpected ", unexpected_);
    add("otherwise in the model ", different_);
    add("of one name once renamed ", twice_);
    // Those of adapters are made for any.
    if (of == ValuesOf::kModel) add("fits nothing: ", unused_patterns());
    return join(parts, "; ");
  }

 private:
  struct Saved {
    std::string name;
    const ManifestTensor* tensor;
  };

  std::string rename(const std::string& name) {
    for (std::size_t i = 0; i < options_.rename.size(); ++i) {
      const std::optional<std::string> other = renamed(options_.rename[i], name);
      if (!other) continue;
      used_[options_.ignore.size() + i] = true;
      return *other;
    }
    return name;
  }

  bool is_ignored(const std::string& name) {
    for (std::size_t i = 0; i < options_.ignore.size(); ++i) {
      if (::fnmatch(options_.ignore[i].c_str(), name.c_str(), 0) != 0) continue;
      used_[i] = true;
      return true;
    }
    return false;
  }

  void check_alike(const StateSpec& spec, const ManifestTensor& saved) {
    if (spec.shape != saved.shape) {
      different_.push_back(quote(spec.name) + " (" + shape_text(saved.shape) + " there, " +
                           shape_text(spec.shape) + " here)");
    } else if (at::isFloatingType(spec.type) && !is_floating_point(saved.type)) {
      different_.push_back(quote(spec.name) + " (" + std::string(name_of(saved.type)) + " there)");
    }
  }

  [[nodiscard]] std::vector<std::string> unused_patterns() const {
    std::vector<std::string> unused;
    for (std::size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      const std::size_t ignored = options_.ignore.size();
      unused.push_back(i < ignored ? "from_ignore " + quote(options_.ignore[i])
                                   : "from_rename " + quote(options_.rename[i - ignored].match));
    }
    return unused;
  }

  const InitialValueOptions& options_;
  std::map<std::string, Saved> by_model_name_;
  std::vector<bool> used_;  // of the patterns of ignore, then of rename
  std::vector<std::string> missing_, unexpected_, different_, twice_;
};

// The key that has asked for values.
std::string key_of(ValuesOf of) {
  return of == ValuesOf::kModel ? "[model] from" : "[adapter] from";
}

std::vector<StateSpec> specs_of(const ModelPart& model, ValuesOf of) {
  std::vector<StateSpec> specs = model.specs();
  std::erase_if(specs, [&](const StateSpec& each) {
    return model.is_adapter(each.name) != (of == ValuesOf::kAdapters);
  });
  return specs;
}

// Throws DataError unless there are values at `path`.
void check_is_there(const fs::path& path, ValuesOf of) {
  if (fs::exists(path)) return;
  const std::string problem = key_of(of) + ": there is no " + shown_path(path);
  if (of == ValuesOf::kModel) {
    throw DataError(
        problem,
        "give the folder of a run or of a checkpoint, or a safetensors file; where it "
        "has been moved: --set model.from=PATH, and of a run with adapters [model] from "
        "in its recipe.toml and in the recipe that it goes on with");
  }
  const bool is_pickled = fs::exists(path.parent_path() / "adapter_model.bin");
  throw DataError(problem + (is_pickled ? ", and adapter_model.bin is not read" : ""),
                  is_pickled ? "save it with save_pretrained(FOLDER, safe_serialization=True)"
                             : "give the folder that save_pretrained() of a PeftModel has written, "
                               "or `troika checkpoint export`");
}

fs::path newest_of(const CheckpointFolder& folder) {
  const std::vector<std::int64_t> steps = folder.steps();
  return steps.empty() ? fs::path() : folder.step_folder(steps.front());
}

}  // namespace

fs::path find_values(const fs::path& path, ValuesOf of) {
  if (is_remote(path.native())) {
    if (is_checkpoint(path)) return path;
    const fs::path newest = newest_of(CheckpointFolder(path));
    if (!newest.empty()) return newest;
    throw DataError(key_of(of) + ": there is no checkpoint in " + shown_place(path),
                    "give the URL of a run's checkpoints, or of one of them");
  }
  check_is_there(path, of);
  if (!fs::is_directory(path) || is_checkpoint(path)) return path;
  if (fs::exists(summary_path(path)) && fs::exists(model_path(path))) return model_path(path);
  for (const CheckpointFolder& folder : {checkpoints_of(path), CheckpointFolder(path)}) {
    if (const fs::path newest = newest_of(folder); !newest.empty()) return newest;
  }
  if (fs::exists(model_path(path))) return model_path(path);
  throw DataError(key_of(of) + ": " + shown_path(path) + " has no model.safetensors, no checkpoint",
                  "give the folder of a run or of a checkpoint, or a safetensors file");
}

std::map<std::string, std::string> match_values(const InitialValueOptions& options,
                                                std::span<const StateSpec> model,
                                                const std::map<std::string, ManifestTensor>& saved,
                                                const std::string& path, ValuesOf of) {
  Matcher matcher(options, saved);
  std::map<std::string, std::string> pairs = matcher.pairs_for(model);
  const std::string problems = matcher.problems(of);
  if (problems.empty()) return pairs;
  if (of == ValuesOf::kAdapters) {
    throw DataError(
        key_of(of) + ": " + path + " is of another adapter: " + problems,
        "adapter.rank and adapter.match have to be those of the folder; leave them out");
  }
  if (std::ranges::any_of(saved, [](const auto& each) { return each.first.ends_with(kLoraA); })) {
    throw DataError(key_of(of) + ": " + path + " has adapters alone: " + problems,
                    "start from the model with them: troika checkpoint export RUN FOLDER --merge, "
                    "then troika checkpoint import FOLDER OUT");
  }
  throw DataError(key_of(of) + ": " + path + " is of another model: " + problems,
                  "from_ignore = [\"fc.*\"] leaves tensors as they are drawn, from_rename maps "
                  "names of the file to those of the model");
}

InitialValues::InitialValues(const InitialValueOptions& options, const ModelPart& model,
                             ValuesOf of)
    : InitialValues(options, specs_of(model, of), model.places(), of) {}

InitialValues::InitialValues(const InitialValueOptions& options, std::span<const StateSpec> specs,
                             const StateDict& places, ValuesOf of)
    : title_(key_of(of) + " " + quote(options.path, 200)), source_(find_values(options.path, of)) {
  const std::map<std::string, std::string> pairs =
      match_values(options, specs, source_.tensors(), shown_place(source_.path()), of);
  for (const auto& [of_model, of_source] : pairs) used_.insert(of_source);
  for (const StateTensor& place : places.tensors()) {
    const auto found = pairs.find(place.name);
    if (found != pairs.end()) wanted_.add(found->second, place.shard, place.tensor);
  }
}

std::string InitialValues::digest() const {
  std::string text;
  for (const SourcePart& part : source_.parts(used_)) {
    text += part.name + " " + hex(part.digest) + "\n";
  }
  return hex(content_hash(text));
}

SharedSource InitialValues::shared_source() {
  SharedSource source;
  source.title = title_;
  if (!is_remote(path().native())) source.path = path();
  source.parts = [this] { return source_.parts(used_); };
  source.details = [this] { return source_.tensor_parts(used_); };
  return source;
}

namespace {

// Collective. Returns the files that this rank is to compare with their SHA-256: those that ranks
// of its host read, divided among these. What another host has compared says nothing of this one's.
std::vector<std::size_t> files_to_verify(const Session& session, const InitialValues& values,
                                         const ReplicatedRead& read) {
  std::set<std::size_t> own;
  read.read([&](const StateTensor& part) {
    for (const std::size_t file : values.files_of(part)) own.insert(file);
  });
  std::string text = identity_of_file(values.path()) + "\n";
  for (const std::size_t file : own) text += std::to_string(file) + " ";
  const std::vector<std::string> all = session.gather(text, "files of initial values");
  const std::string host = text.substr(0, text.find('\n') + 1);
  std::map<std::size_t, std::vector<std::size_t>> readers;  // by file, ascending
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].starts_with(host)) continue;
    std::istringstream files(all[rank].substr(host.size()));
    for (std::size_t file = 0; files >> file;) readers[file].push_back(rank);
  }
  std::vector<std::size_t> counts(all.size(), 0), mine;
  for (const auto& [file, ranks] : readers) {
    const std::size_t rank =
        *std::ranges::min_element(ranks, {}, [&](std::size_t each) { return counts[each]; });
    ++counts[rank];
    if (rank == static_cast<std::size_t>(session.rank())) mine.push_back(file);
  }
  return mine;
}

}  // namespace

std::string take_initial_values(const InitialValueOptions& options, const Session& session,
                                Seconds patience, const ModelPart& model, ValuesOf of) {
  constexpr std::string_view kLabel = "initial values";
  const auto agree = [&](const std::optional<Failure>& own) {
    session.world().barrier({kLabel, Deadline::in(patience)}).wait();
    throw_on_all_ranks(session, own, kLabel, NameRanks::kUnlessAll);
  };
  std::optional<InitialValues> values;
  agree(failure_in([&] { values.emplace(options, model, of); }));
  const SharedSource source = values->shared_source();
  agree_on_sources(session, {&source, 1}, {kLabel, patience});
  const ReplicatedRead read(session.world(), values->wanted(), patience);
  const std::vector<std::size_t> files = files_to_verify(session, *values, read);
  agree(failure_in([&] {
    if (files.empty()) return;
    DigestCache cache(DigestCache::user_folder());
    for (const std::size_t file : files) values->verify(file, cache);
    cache.save();
  }));
  agree(failure_in([&] {
    const at::NoGradGuard no_autograd;
    read.read([&](const StateTensor& part) { values->read(part); });
  }));
  read.share();
  return "initial values of " + std::to_string(values->tensors()) + " of " +
         plural(std::ssize(specs_of(model, of)), "tensor") + " from " + values->path().string();
}

void take_initial_values(const InitialValueOptions& options, const Session& session,
                         Seconds patience, Trainer& trainer, ValuesOf of) {
  if (options.are_drawn()) return;
  const std::string taken = take_initial_values(options, session, patience, trainer.model(), of);
  trainer.adopt_values();
  if (session.rank() != 0) return;
  warn_of_doubt(find_values(options.path, of));
  log_info(taken);
}

}  // namespace troika
