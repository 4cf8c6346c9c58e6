#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/checkpoint/manifest.h>
#include <troika/session/consensus.h>
#include <troika/train/adapted_model.h>
#include <troika/train/model_sources.h>
#include <troika/train/peft_folder.h>
#include <troika/train/run_tensors.h>
#include <troika/train/saved_model.h>

#include <algorithm>
#include <map>
#include <utility>

namespace troika {
namespace {

// Of values that the seed draws there is nothing to digest: the recipe has the seed.
std::string base_digest(const ModelOptions& model, const InitialValues* from) {
  std::string text = from != nullptr ? from->digest() + "\n" : "drawn\n";
  for (const auto& [title, digest] : digests_of_model(model)) text += digest + "\n";
  return hex(content_hash(text));
}

// What a run has noted beside the tensors of `path`: a file, or the folder of a checkpoint.
Metadata metadata_of(const std::filesystem::path& path) {
  if (is_checkpoint(path)) return read_checkpoint(path).provenance;
  return SafetensorsFile(path).metadata();
}

// A whole model in memory, and where it is read to.
class WholeModel {
 public:
  WholeModel(Arena& arena, std::span<const NamedTensor> buffers) : arena_(arena) {
    for (const auto& each : arena.parameters()) {
      tensors_.push_back({each->spec().name, each->master()});
    }
    tensors_.insert(tensors_.end(), buffers.begin(), buffers.end());
    for (const NamedTensor& each : tensors_) {
      specs_.push_back({each.name, each.tensor.sizes().vec(), each.tensor.scalar_type()});
      places_.add(each.name, ShardDescriptor::whole(each.tensor.sizes(), false),
                  each.tensor.view({-1}));
      by_name_.emplace(each.name, each.tensor);
    }
    std::ranges::sort(specs_, {}, &StateSpec::name);
  }

  // The values that the adapters were trained on.
  void take_base(const Recipe& recipe, const Metadata& saved) {
    arena_.initialize(static_cast<std::uint64_t>(recipe.seed));
    std::optional<InitialValues> values;
    if (!recipe.model.from.are_drawn()) values.emplace(recipe.model.from, specs_, places_);
    check_base(saved, base_digest(recipe.model, values ? &*values : nullptr), recipe.model);
    if (!values) return;
    for (const StateTensor& part : values->wanted()) values->read(part);
  }

  // Buffers go first: a parameter that an exported program freezes is one, so it is saved beside
  // the pair that is added to it.
  void add_pairs(TensorSource& saved, double scale) {
    for (const TensorEntry& entry : saved.entries()) {
      if (!entry.name.ends_with(kLoraA) && !entry.name.ends_with(kLoraB)) take(saved, entry);
    }
    for (const TensorEntry& entry : saved.entries()) {
      if (entry.name.ends_with(kLoraA)) add_pair(saved, entry, scale);
    }
  }

 private:
  void take(TensorSource& saved, const TensorEntry& entry) {
    const at::Tensor* const buffer = find(entry.name);
    if (buffer == nullptr) return;
    if (buffer->sizes() != at::IntArrayRef(entry.shape)) {
      throw DataError(
          shown_place(saved.path()) + ": tensor " + quote(entry.name) + " has another shape",
          "the adapter is of another model than the recipe beside it");
    }
    buffer->copy_(saved.load(entry));
  }

  void add_pair(TensorSource& saved, const TensorEntry& entry, double scale) {
    const std::string layer = entry.name.substr(0, entry.name.size() - kLoraA.size());
    const at::Tensor* const weight = find(layer + ".weight");
    const at::Tensor a = saved.load(entry).to(at::kDouble);
    const at::Tensor b = saved.load(saved.at(layer + std::string(kLoraB))).to(at::kDouble);
    const bool fits = weight != nullptr && a.dim() == 2 && b.dim() == 2 &&
                      weight->sizes() == at::IntArrayRef({b.size(0), a.size(1)}) &&
                      a.size(0) == b.size(1);
    if (!fits) {
      throw DataError(shown_place(saved.path()) + ": " + quote(layer) +
                          " is no linear layer of the model, or has another shape",
                      "the adapter is of another model than the recipe beside it");
    }
    const at::Tensor change = at::mm(b, a).mul_(scale);
    weight->copy_(weight->to(at::kCPU, at::kDouble).add_(change));
  }

  [[nodiscard]] const at::Tensor* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &found->second;
  }

  Arena& arena_;
  std::vector<NamedTensor> tensors_;
  std::vector<StateSpec> specs_;
  StateDict places_;
  std::map<std::string, at::Tensor> by_name_;
};

void load_merged(const Recipe& recipe, TensorSource& saved, Arena& arena,
                 std::span<const NamedTensor> buffers) {
  const at::NoGradGuard no_autograd;
  WholeModel whole(arena, buffers);
  whole.take_base(recipe, metadata_of(saved.path()));
  whole.add_pairs(saved, recipe.model.adapter.lora()->scale());
  arena.publish();
}

// The merged model itself, in memory.
class MergedTensors final : public TensorSource {
 public:
  MergedTensors(const std::filesystem::path& path, std::unique_ptr<ModelPart> part,
                std::map<std::string, at::Tensor> tensors)
      : TensorSource(path, entries_of(tensors)),
        part_(std::move(part)),
        tensors_(std::move(tensors)) {}

  [[nodiscard]] at::Tensor load(const TensorEntry& entry) override {
    return tensors_.at(entry.name).contiguous();
  }

 private:
  static std::vector<TensorEntry> entries_of(const std::map<std::string, at::Tensor>& tensors) {
    std::vector<TensorEntry> entries;
    for (const auto& [name, tensor] : tensors) {
      const auto type = data_type_of(tensor.scalar_type());
      check(type.has_value(), "a tensor of a model that files do not have");
      entries.push_back({.name = name, .type = *type, .shape = tensor.sizes().vec()});
    }
    return entries;
  }

  std::unique_ptr<ModelPart> part_;
  std::map<std::string, at::Tensor> tensors_;
};

// Throws DataError where the folder's pairs compute what none of these do.
void check_adapter_folder(const LoraOptions& lora) {
  if (lora.from == LoraOptions::kDrawn || !std::filesystem::is_directory(lora.from)) return;
  (void)read_peft_config(lora.from);
}

}  // namespace

InitialValueOptions adapter_values(const ModelOptions& model) {
  InitialValueOptions options;
  const LoraOptions* const lora = model.adapter.lora();
  if (lora == nullptr || lora->from == LoraOptions::kDrawn) return options;
  options.path = lora->from;
  if (std::filesystem::is_directory(lora->from)) {
    options.path = (std::filesystem::path(lora->from) / kPeftTensors).string();
  }
  options.rename = peft_names(model);
  return options;
}

std::string take_all_initial_values(const ModelOptions& model, const Session& session,
                                    Seconds patience, Trainer& trainer, TakeAdapters adapters) {
  const LoraOptions* const lora = model.adapter.lora();
  if (lora != nullptr || adapters == TakeAdapters::kYes) {
    take_initial_values(model.from, session, patience, trainer);
  }
  if (lora == nullptr) return "";
  if (adapters == TakeAdapters::kYes) {
    // A recipe that has all keys was resolved without a look at the folder.
    const auto refused = failure_in([&] { check_adapter_folder(*lora); });
    throw_on_all_ranks(session, refused, "adapter", NameRanks::kUnlessAll);
    take_initial_values(adapter_values(model), session, patience, trainer, ValuesOf::kAdapters);
  }
  std::string digest;
  const auto failure = failure_in([&] {
    if (session.rank() != 0) return;
    std::optional<InitialValues> values;
    if (!model.from.are_drawn()) values.emplace(model.from, trainer.model());
    digest = base_digest(model, values ? &*values : nullptr);
  });
  throw_on_all_ranks(session, failure, "base", NameRanks::kUnlessAll);
  return digest;
}

void check_base(const Metadata& saved, const std::string& digest, const ModelOptions& model) {
  const auto noted = saved.find(kBaseEntry);
  if (noted == saved.end() || noted->second == digest) return;
  const std::string where = model.from.are_drawn() ? "" : " in " + quote(model.from.path, 200);
  throw DataError(
      "the base" + where +
          " is not the one that the run's adapters were trained on: its values differ",
      "bring back the base, or write where it is now as [model] from in the run's recipe.toml, and "
      "in the recipe that it goes on with");
}

Recipe merged_recipe(Recipe recipe) {
  if (recipe.model.adapter.lora() == nullptr) return recipe;
  recipe.model.adapter = AdapterOptions();
  recipe.optimizer.groups.clear();  // they may name adapters, or freeze all else
  return recipe;
}

void load_trained(const Recipe& recipe, const std::filesystem::path& path, Arena& arena,
                  std::span<const NamedTensor> buffers) {
  if (recipe.model.adapter.lora() == nullptr) return load_parameters(path, arena, buffers);
  load_merged(recipe, *open_tensor_file(path), arena, buffers);
}

std::unique_ptr<TensorSource> open_whole_tensors(const Recipe& recipe,
                                                 const std::filesystem::path& run,
                                                 std::optional<std::int64_t> step) {
  auto saved = open_run_tensors(run, step);
  if (recipe.model.adapter.lora() == nullptr) return saved;
  Recipe merged = merged_recipe(recipe);
  merged.parallel = ParallelOptions();
  merged.parallel.data = 1;
  if (merged.train.precision != Precision::kFloat64) merged.train.precision = Precision::kFloat32;
  auto part = std::make_unique<ModelPart>(merged, ModelPlacement());
  std::vector<NamedTensor> buffers;
  for (const ModelPart::Buffer& each : part->buffers()) buffers.push_back({each.name, each.tensor});
  load_merged(recipe, *saved, part->arena(), buffers);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& each : part->arena().parameters()) {
    tensors.emplace(each->spec().name, each->master());
  }
  for (const NamedTensor& each : buffers) tensors.emplace(each.name, each.tensor);
  return std::make_unique<MergedTensors>(saved->path(), std::move(part), std::move(tensors));
}

}  // namespace troika
