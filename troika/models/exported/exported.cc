#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/exported/module.h>
#include <troika/exported/program.h>
#include <troika/exported/shapes.h>
#include <troika/models/exported/exported.h>
#include <troika/models/row/network_result.h>
#include <troika/param/shape_text.h>

#include <algorithm>
#include <optional>

namespace troika {
namespace {

constexpr const char* kDynamic =
    "export it with dynamic_shapes, which say that the first extent of each input is that of the "
    "samples: {\"NAME\": {0: torch.export.Dim.DYNAMIC}}";

template <class T>
const T* find_named(const std::vector<T>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &T::name);
  return found == tensors.end() ? nullptr : &*found;
}

// Reads an exported program, and completes a recipe by it.
class Description {
 public:
  explicit Description(const ExportedOptions& options)
      : file_(shown_path(options.path)),
        archive_(options.path),
        program_(read_program(archive_)),
        takes_(program_.given()),
        gives_(program_.results()) {}

  void complete(ExportedOptions& options) const {
    if (takes_.empty()) throw UsageError(file_ + " takes no tensor");
    refuse_draws(options);
    refuse_unknown(options.inputs, takes_, "input");
    refuse_unknown(options.outputs, gives_, "result");
    std::vector<ExportedInput> inputs;
    for (std::size_t i = 0; i < takes_.size(); ++i) {
      if (ScriptTensor* const target = find_target(options, takes_[i].name)) {
        *target = completed(i, target);
        continue;
      }
      const ExportedInput* const said = find_named(options.inputs, takes_[i].name);
      inputs.push_back({completed(i, said), said != nullptr ? said->mask_of : kNoMask});
    }
    options.inputs = std::move(inputs);
    refuse_unknown_tokens(options);
    complete_outputs(options);
  }

 private:
  // Evaluations have no random numbers.
  void refuse_draws(const ExportedOptions& options) const {
    const auto refuse = [&](const Program& program, const std::string& file) {
      const auto node = draws_always(*program.graph);
      if (!node) return;
      throw UsageError(
          file + ": " + *node + " draws random numbers, in evaluation too",
          "torch.export keeps the branch of training, such as stochastic depth: export the module "
          "in eval mode too, and name that file as model.evaluation_path");
    };
    if (const auto evaluation = evaluation_file(options)) {
      refuse(read_program(ExportArchive(*evaluation)), shown_path(*evaluation));
    } else {
      refuse(program_, file_);
    }
  }

  static ScriptTensor* find_target(ExportedOptions& options, const std::string& name) {
    const auto found = std::ranges::find(options.targets, name, &ScriptTensor::name);
    return found == options.targets.end() ? nullptr : &*found;
  }

  template <class T>
  void refuse_unknown(const std::vector<T>& said, const std::vector<ExportedTensor>& found,
                      const std::string& role) const {
    std::vector<std::string> names;
    for (const ExportedTensor& each : found) names.push_back(each.name);
    for (const T& each : said) {
      if (std::ranges::count(names, each.name) > 0) continue;
      const auto near = nearest(each.name, std::span<const std::string>(names));
      throw UsageError(file_ + " has no " + role + " " + quote(each.name, 200) +
                           (near ? "; did you mean '" + *near + "'?" : ""),
                       "it has " + join(names, ", "));
    }
  }

  void refuse_unknown_tokens(const ExportedOptions& options) const {
    for (const ExportedInput& each : options.inputs) {
      if (each.mask_of == kNoMask || find_named(options.inputs, each.mask_of) != nullptr) continue;
      throw UsageError(file_ + ": input " + quote(each.name, 200) + " is to be the mask of " +
                       quote(each.mask_of, 200) + ", which is no input");
    }
  }

  // One of what forward() takes, as the recipe says it and the file.
  [[nodiscard]] ScriptTensor completed(std::size_t position, const ScriptTensor* said) const {
    const ExportedTensor& own = takes_[position];
    const std::string title = file_ + ": input " + quote(own.name, 200);
    if (own.sizes.empty() || own.sizes[0]) {
      throw UsageError(title + (own.sizes.empty() ? " is a number"
                                                  : " was exported for " +
                                                        plural(*own.sizes[0], "sample") + " alone"),
                       kDynamic);
    }
    ScriptTensor tensor;
    tensor.name = own.name;
    for (std::size_t i = 1; i < own.sizes.size(); ++i)
      tensor.shape.push_back(own.sizes[i].value_or(-1));
    tensor.dtype = at::isFloatingType(own.type) ? ScriptDtype::kFloat32 : ScriptDtype::kInt64;
    if (said != nullptr) {
      tensor.classes = said->classes;
      take_shape(tensor, said->shape, title);
    }
    if (std::ranges::count(tensor.shape, -1) > 0) {
      throw UsageError(title +
                           " has extents that were exported as dynamic, and the recipe does not "
                           "say them",
                       "write [model.inputs] " + own.name + " = { shape = [...] }");
    }
    check_ranges(own, tensor, title);
    if (tensor.classes == 0 && tensor.dtype == ScriptDtype::kInt64) {
      tensor.classes = rows_looked_up(program_, position).value_or(0);
    }
    return tensor;
  }

  static void check_ranges(const ExportedTensor& own, const ScriptTensor& tensor,
                           const std::string& title) {
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      const auto [least, most] = own.ranges[i + 1];
      if (own.sizes[i + 1] || (tensor.shape[i] >= least && tensor.shape[i] <= most)) continue;
      const bool is_small = tensor.shape[i] < least;
      throw UsageError(title + " is " + shape_text(tensor.shape) +
                           " for a sample, and the program " + "takes " +
                           (is_small ? "no less than " + std::to_string(least)
                                     : "no more than " + std::to_string(most)) +
                           " there",
                       "it keeps the branches that its example took: export it with a smaller one "
                       "for others");
    }
  }

  // A shape that is said has to be that of the file, but for dynamic extents.
  static void take_shape(ScriptTensor& tensor, const std::vector<std::int64_t>& said,
                         const std::string& title) {
    if (said.empty() && !tensor.shape.empty()) return;
    bool fits = said.size() == tensor.shape.size();
    for (std::size_t i = 0; fits && i < said.size(); ++i) {
      fits = tensor.shape[i] < 0 || tensor.shape[i] == said[i];
    }
    if (fits) {
      tensor.shape = said;
      return;
    }
    throw UsageError(
        title + " is " + shape_text(tensor.shape) + " for a sample, not " + shape_text(said),
        "leave out shape: the file has it");
  }

  void complete_outputs(ExportedOptions& options) const {
    const auto shapes = shapes_of_results(options);
    std::vector<ScriptTensor> all;
    for (std::size_t i = 0; i < gives_.size(); ++i) {
      ScriptTensor& tensor = all.emplace_back();
      tensor.name = gives_[i].name;
      tensor.dtype =
          at::isFloatingType(gives_[i].type) ? ScriptDtype::kFloat32 : ScriptDtype::kInt64;
      const bool has_samples = !gives_[i].sizes.empty() && !gives_[i].sizes[0];
      if (has_samples) tensor.shape.assign(shapes[i].begin() + 1, shapes[i].end());
      if (has_samples || gives_[i].sizes.empty()) continue;
      if (!options.outputs.empty() && find_named(options.outputs, tensor.name) == nullptr) continue;
      throw UsageError(file_ + ": the first extent of result " + quote(tensor.name, 200) +
                           " is not that of the samples",
                       "choose others by [model.outputs], as in outputs = { logits = {} }");
    }
    if (options.outputs.empty()) {
      options.outputs = std::move(all);
      return;
    }
    for (ScriptTensor& each : options.outputs) {
      const std::int64_t classes = each.classes;
      each = *find_named(all, each.name);
      each.classes = classes;
    }
  }

  [[nodiscard]] std::vector<std::vector<std::int64_t>> shapes_of_results(
      const ExportedOptions& options) const {
    constexpr std::int64_t kSamples = 2;
    std::vector<std::vector<std::int64_t>> known;
    const bool all_known = std::ranges::all_of(gives_, [](const ExportedTensor& each) {
      return std::ranges::all_of(each.sizes, [&](const auto& size) {
        return size.has_value() || &size == each.sizes.data();
      });
    });
    if (all_known) {
      for (const ExportedTensor& each : gives_) {
        std::vector<std::int64_t>& shape = known.emplace_back();
        for (const auto& size : each.sizes) shape.push_back(size.value_or(kSamples));
      }
      return known;
    }
    for (const ExportedTensor& each : takes_) {
      const ScriptTensor* tensor = find_named(options.targets, each.name);
      if (tensor == nullptr) tensor = find_named(options.inputs, each.name);
      std::vector<std::int64_t>& shape = known.emplace_back(tensor->shape);
      shape.insert(shape.begin(), kSamples);
    }
    return result_shapes(program_, known, file_);
  }

  std::string file_;
  ExportArchive archive_;
  Program program_;
  std::vector<ExportedTensor> takes_, gives_;
};

// What the unit takes of a batch: a loss of the program's own takes the targets too.
struct Taken {
  std::string name;     // in the program
  std::string in_data;  // in a batch
};

std::string name_in_data(const ExportedInput& input) {
  return input.mask_of == kNoMask ? input.name : input.mask_of + ".mask";
}

std::vector<Taken> taken_of(const ExportedOptions& options, const LossOptions& loss) {
  std::vector<Taken> taken;
  for (const ExportedInput& each : options.inputs) taken.push_back({each.name, name_in_data(each)});
  if (!loss.kind().is_of_model()) return taken;
  for (const ScriptTensor& each : options.targets) taken.push_back({each.name, each.name});
  return taken;
}

// The program as a unit calls it: with what it takes by name, and what the recipe uses of its
// results.
class Forward {
 public:
  Forward(const ExportedOptions& options, const LossOptions& loss)
      : module_(
            load_exported(options.path, {evaluation_file(options), options.checkpoint_modules})),
        result_(network_of(options), loss) {
    const std::vector<Taken> taken = taken_of(options, loss);
    for (const ExportedTensor& each : module_->takes()) {
      const auto found = std::ranges::find(taken, each.name, &Taken::name);
      if (found == taken.end()) {
        throw UsageError(shown_path(options.path) + " takes the target " + quote(each.name, 200) +
                             ", and the recipe has a loss of troika's",
                         "write loss = \"none\" where the program returns its loss, or export it "
                         "without that input");
      }
      from_.push_back(static_cast<std::size_t>(found - taken.begin()));
    }
    for (const ScriptTensor& each : options.outputs) {
      const auto& gives = module_->gives();
      const auto found = std::ranges::find(gives, each.name, &ExportedTensor::name);
      chosen_.push_back(static_cast<std::size_t>(found - gives.begin()));
    }
  }

  [[nodiscard]] const std::shared_ptr<ExportedModule>& module() const { return module_; }

  Tensors operator()(const Tensors& inputs) const {
    Tensors arguments, chosen;
    for (std::size_t i = 0; i < from_.size(); ++i) {
      const at::ScalarType type = module_->takes()[i].type;
      const at::Tensor& given = inputs[from_[i]];
      arguments.push_back(at::isFloatingType(type) ? given : given.to(type));
    }
    const Tensors all = module_->forward(arguments);
    for (const std::size_t position : chosen_) chosen.push_back(all.at(position));
    return result_.arrange(chosen, inputs[0].size(0));
  }

 private:
  std::shared_ptr<ExportedModule> module_;
  NetworkResult result_;
  std::vector<std::size_t> from_;    // of what is given, for each that the program takes
  std::vector<std::size_t> chosen_;  // of its results
};

}  // namespace

NetworkFile network_of(const ExportedOptions& options) {
  NetworkFile network;
  static_cast<ProgramFiles&>(network) = options;
  for (const ExportedInput& each : options.inputs) {
    network.inputs.push_back(each);
    network.inputs.back().name = name_in_data(each);
  }
  network.targets = options.targets;
  network.outputs = options.outputs;
  network.loss_output = options.loss_output;
  network.weight_output = options.weight_output;
  network.loss_reduction = options.loss_reduction;
  return network;
}

void complete_from_file(ExportedOptions& options) {
  const bool is_described = !options.inputs.empty();
  const bool is_there = std::ranges::all_of(
      paths_of(options), [](const auto& path) { return std::filesystem::exists(path); });
  if (options.path.empty() || (is_described && !is_there)) return;
  Description(options).complete(options);
}

RowModel exported_row(const ExportedOptions& options, const LossOptions& loss) {
  const NetworkResult result(network_of(options), loss);
  RowModel row;
  for (const ScriptTensor& each : network_of(options).inputs) {
    row.sample.tensors.push_back(spec_of(each, TensorRole::kInput));
  }
  for (const ScriptTensor& each : options.targets) {
    row.sample.tensors.push_back(spec_of(each, TensorRole::kTarget));
  }
  NamedUnit& unit = row.units.emplace_back();
  unit.name = "program";
  unit.prefix = "";
  unit.make = [options, loss] {
    const Forward forward(options, loss);
    return UnitModule{forward.module(), forward};
  };
  for (const ScriptTensor& each : result.gives()) {
    const bool floating = each.dtype == ScriptDtype::kFloat32;
    unit.flow.gives.push_back({each.name, each.shape, floating ? at::kFloat : at::kLong, floating});
  }
  for (const Taken& each : taken_of(options, loss)) unit.flow.takes.push_back(each.in_data);
  if (loss.kind().is_of_model()) row.loss = result.loss();
  return row;
}

}  // namespace troika
