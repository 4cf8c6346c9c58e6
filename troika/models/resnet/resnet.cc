#include <troika/models/resnet/blocks.h>
#include <troika/models/resnet/resnet.h>
#include <troika/nn/module_unit.h>

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <torch/torch.h>

#include <cmath>
#include <numeric>

namespace troika {
namespace {

// He et al.'s initial values for ReLU networks; those of torch::nn::Linear, of `inputs` features,
// for the last layer.
void describe_parameter(ParameterSpec& spec, std::int64_t inputs) {
  spec.decays = spec.shape.size() > 1;
  if (spec.shape.size() == 4) {
    const auto fan_out = static_cast<double>(spec.shape[0] * spec.shape[2] * spec.shape[3]);
    spec.initializer = Initializer::normal(std::sqrt(2 / fan_out));
  } else if (spec.name.starts_with("fc.")) {
    spec.initializer = Initializer::uniform(1 / std::sqrt(static_cast<double>(inputs)));
  } else {
    spec.initializer = Initializer::constant(spec.name.ends_with(".weight") ? 1 : 0);
    spec.keep_fp32 = true;
  }
}

// Sizes while the units are laid out one after the other.
struct Cursor {
  std::int64_t channels, size;
};

std::int64_t halved(std::int64_t size) {
  return (size - 1) / 2 + 1;
}

// Multiply-adds count two, and the backward pass takes every product twice.
double flops_of_convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                            std::int64_t size) {
  return 6 * static_cast<double>(in * out * kernel * kernel) * static_cast<double>(size * size);
}

class Builder {
 public:
  Builder(const ResnetOptions& options, const LossOptions& loss, const ModelLayout& layout)
      : options_(options),
        loss_(loss.kind().make(loss.options())),
        layout_(layout),
        names_(resnet_unit_names(options)) {}

  Model build() {
    add_stem();
    for (std::size_t group = 0; group < options_.blocks.size(); ++group) {
      for (std::int64_t block = 0; block < options_.blocks[group]; ++block) {
        add_block(group, block);
      }
    }
    add_head();
    make_units();
    auto& facts = model_.facts;
    facts.flops_per_sample = std::accumulate(facts.unit_flops.begin(), facts.unit_flops.end(), 0.0);
    facts.pads_microbatches = syncs();
    return std::move(model_);
  }

 private:
  [[nodiscard]] bool syncs() const {
    return options_.norm == BatchNormKind::kSynchronised && layout_.data.size() > 1;
  }
  [[nodiscard]] ResnetNorm norm() const {
    return {options_.norm_eps, options_.norm_momentum, options_.norm, layout_.data,
            layout_.timeout};
  }
  [[nodiscard]] at::MemoryFormat format() const {
    return options_.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  }

  void add_stem() {
    const bool large = options_.stem == ResnetStem::k224;
    const std::int64_t size = large ? halved(options_.image_size) : options_.image_size;
    const double flops =
        flops_of_convolution(options_.channels, options_.width, large ? 7 : 3, size);
    const Cursor next{options_.width, large ? halved(size) : size};
    add(
        "", [=, this] { return ResnetStemModule(options_, norm(), format(), layout_.type); }, next,
        flops);
  }

  void add_block(std::size_t group, std::int64_t block) {
    const std::int64_t stride = group > 0 && block == 0 ? 2 : 1;
    const std::int64_t width = options_.width << group;
    const bool bottleneck = options_.block == ResnetBlock::kBottleneck;
    const std::int64_t in = at_.channels, out = bottleneck ? 4 * width : width;
    const Cursor next{out, stride == 2 ? halved(at_.size) : at_.size};
    double flops = bottleneck ? flops_of_convolution(in, width, 1, at_.size) +
                                    flops_of_convolution(width, width, 3, next.size) +
                                    flops_of_convolution(width, out, 1, next.size)
                              : flops_of_convolution(in, width, 3, next.size) +
                                    flops_of_convolution(width, width, 3, next.size);
    const bool projects = stride != 1 || in != out;
    if (projects) flops += flops_of_convolution(in, out, 1, next.size);
    const BlockShape shape{in, width, out, stride, bottleneck};
    const std::string prefix =
        "layer" + std::to_string(group + 1) + "." + std::to_string(block) + ".";
    add(
        prefix, [=, this] { return ResnetBlockModule(shape, norm(), format()); }, next, flops);
  }

  void add_head() {
    const std::int64_t channels = at_.channels, classes = options_.classes;
    const double flops = 6 * static_cast<double>(channels * classes);
    add(
        "", [=] { return ResnetHeadModule(channels, classes); }, {classes, 0}, flops);
  }

  template <class Make>
  void add(std::string prefix, const Make& make, Cursor next, double flops) {
    std::vector<std::int64_t> output{next.channels};
    if (next.size > 0) output.insert(output.end(), {next.size, next.size});
    NamedUnit unit = troika::unit(names_[units_.size()], make, output, flops);
    unit.prefix = std::move(prefix);
    unit.describe = [inputs = at_.channels](ParameterSpec& spec) {
      describe_parameter(spec, inputs);
    };
    unit.runs_without_samples = syncs();
    units_.push_back(std::move(unit));
    model_.facts.unit_flops.push_back(flops);
    at_ = next;
  }

  void make_units() {
    units_ = with_default_takes(std::move(units_));
    const std::vector<std::vector<UnitTensor>> flows = flows_of(units_);
    const UnitLoss loss = [loss = loss_](const TensorMap& outputs, const Microbatch& microbatch) {
      return loss->of(outputs[0], LossTargets::of(microbatch, "targets"));
    };
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const bool is_last = i + 1 == units_.size();
      model_.units.push_back(std::make_unique<ModuleUnit>(units_[i], flows[i], flows[i + 1],
                                                          is_last ? loss : UnitLoss(),
                                                          layout_.recompute, layout_.type));
    }
  }

  const ResnetOptions& options_;
  std::shared_ptr<const Loss> loss_;
  const ModelLayout& layout_;
  std::vector<std::string> names_;
  Cursor at_{};
  std::vector<NamedUnit> units_;
  Model model_;
};

// oneDNN's kernel for AVX2 writes beyond the gradient of a 1 x 1 convolution whose channels do not
// fill its vectors. Networks so small do without oneDNN there: ATen's own kernels take its place in
// all of this process.
void avoid_kernel_that_overruns(std::int64_t width) {
  constexpr std::int64_t kVector = 8;
  if (width % kVector == 0 || at::get_cpu_capability() == "AVX512") return;
  at::globalContext().setUserEnabledMkldnn(false);
}

}  // namespace

std::vector<std::string> resnet_unit_names(const ResnetOptions& options) {
  std::vector<std::string> names = {"stem"};
  for (std::size_t group = 0; group < options.blocks.size(); ++group) {
    for (std::int64_t block = 0; block < options.blocks[group]; ++block) {
      names.push_back("layer" + std::to_string(group + 1) + "." + std::to_string(block));
    }
  }
  names.emplace_back("head");
  return names;
}

Model build_resnet(const ResnetOptions& options, const LossOptions& loss,
                   const ModelLayout& layout) {
  avoid_kernel_that_overruns(options.width);
  return Builder(options, loss, layout).build();
}

}  // namespace troika
