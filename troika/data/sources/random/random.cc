#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/random.h>
#include <troika/data/sources/random/random.h>
#include <troika/data/sources/random/random_features.h>

#include <algorithm>

namespace troika {
namespace {

// The parts that random tokens and random features share: an endless train side, and a held-out
// side of another stream.
class RandomDataset : public Dataset {
 public:
  RandomDataset(const RandomOptions& data, std::uint64_t seed, const std::string& name)
      : held_out_samples_(data.held_out_fraction > 0 ? kRandomHeldOutSamples : 0),
        train_key_(stream_key(seed, name + ".train")),
        held_out_key_(stream_key(seed, name + ".held_out")) {}

  [[nodiscard]] std::int64_t samples(Split split) const override {
    return split == Split::kTrain ? kUnlimited : held_out_samples_;
  }
  [[nodiscard]] SampleRef at(Split split, std::int64_t ordinal) const override {
    check(ordinal >= 0 && ordinal < samples(split), "a sample that is not there");
    return {0, 0, ordinal, ordinal};
  }
  [[nodiscard]] std::string fingerprint() const override { return hex(train_key_); }
  [[nodiscard]] std::optional<double> bytes_per_token() const override { return std::nullopt; }
  [[nodiscard]] DatasetFacts facts() const override { return {}; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }

 protected:
  [[nodiscard]] std::uint64_t key(Split split) const {
    return split == Split::kTrain ? train_key_ : held_out_key_;
  }
  // The number and the step of each sample; the caller fills the rest.
  [[nodiscard]] static Microbatch numbered(std::span<const SampleRef> samples, std::int64_t step) {
    Microbatch batch;
    batch.step = step;
    batch.sample_ids = at::empty({static_cast<std::int64_t>(samples.size())}, at::kLong);
    auto* ids = batch.sample_ids.mutable_data_ptr<std::int64_t>();
    for (const SampleRef& sample : samples) *ids++ = sample.ordinal;
    return batch;
  }

 private:
  std::int64_t held_out_samples_;
  std::uint64_t train_key_;
  std::uint64_t held_out_key_;
  std::vector<std::string> warnings_;
};

// Draws a tensor of any shape and type, sample by sample. Const access is thread safe.
class TensorDraws {
 public:
  // Writes what a teacher looks at to `taught`, unless that is undefined.
  [[nodiscard]] at::Tensor draw(const TensorSpec& spec, std::uint64_t stream,
                                std::span<const SampleRef> samples,
                                const at::Tensor& taught = {}) const {
    std::vector<std::int64_t> shape = spec.shape;
    shape.insert(shape.begin(), std::ssize(samples));
    if (spec.dtype == at::kLong) return draw_whole(spec, stream, samples, taught, shape);
    at::Tensor values = at::empty(shape, at::kFloat);
    const auto numbers = static_cast<std::size_t>(c10::multiply_integers(spec.shape));
    auto* out = values.mutable_data_ptr<float>();
    for (const SampleRef& sample : samples) {
      normal_.fill(stream, static_cast<std::uint64_t>(sample.index), std::span(out, numbers));
      out += numbers;
    }
    if (taught.defined()) taught.copy_(values.view(taught.sizes()));
    return values;
  }

 private:
  // The teacher sees whole numbers spread over [-1, 1).
  [[nodiscard]] static at::Tensor draw_whole(const TensorSpec& spec, std::uint64_t stream,
                                             std::span<const SampleRef> samples,
                                             const at::Tensor& taught,
                                             const std::vector<std::int64_t>& shape) {
    at::Tensor values = at::empty(shape, at::kLong);
    const auto numbers = static_cast<std::uint64_t>(c10::multiply_integers(spec.shape));
    const auto range = static_cast<std::uint64_t>(std::max<std::int64_t>(2, spec.range));
    auto* out = values.mutable_data_ptr<std::int64_t>();
    for (const SampleRef& sample : samples) {
      const RandomStream of_sample(stream, static_cast<std::uint64_t>(sample.index));
      for (std::uint64_t i = 0; i < numbers; ++i) {
        *out++ = static_cast<std::int64_t>(of_sample.below(i, range));
      }
    }
    if (taught.defined()) {
      taught.copy_(values.view(taught.sizes()).to(at::kFloat) * (2 / static_cast<double>(range)) -
                   1);
    }
    return values;
  }

  NormalTable normal_;
};

class RandomTokens final : public RandomDataset {
 public:
  RandomTokens(const RandomOptions& data, const SampleSpec& sample, std::uint64_t seed)
      : RandomDataset(data, seed, "data.random.tokens"),
        input_(sample.input().name),
        target_(sample.target().name),
        tensors_(required(sample)),
        seed_(seed),
        length_(sample.input().shape.front()),
        vocab_size_(static_cast<std::uint64_t>(sample.input().range)) {}

  [[nodiscard]] Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                      std::int64_t step) const override {
    Microbatch batch = numbered(samples, step);
    const auto count = static_cast<std::int64_t>(samples.size());
    for (const TensorSpec& each : tensors_) {
      const bool is_token = each.name == input_ || each.name == target_;
      batch.tensors.add(
          each.name, is_token
                         ? at::empty({count, length_}, at::kLong)
                         : draws_.draw(each, stream_key(seed_ ^ key(split), each.name), samples));
    }
    auto* inputs = batch.tensors.at(input_).mutable_data_ptr<std::int64_t>();
    auto* targets = batch.tensors.at(target_).mutable_data_ptr<std::int64_t>();
    for (const SampleRef& sample : samples) {
      const RandomStream stream(key(split), static_cast<std::uint64_t>(sample.index));
      auto id = static_cast<std::int64_t>(stream.below(0, vocab_size_));
      for (std::int64_t i = 0; i < length_; ++i) {
        *inputs++ = id;
        id =
            static_cast<std::int64_t>(stream.below(static_cast<std::uint64_t>(i) + 1, vocab_size_));
        *targets++ = id;
      }
    }
    batch.valid = count * length_;
    return batch;
  }

 private:
  static std::vector<TensorSpec> required(const SampleSpec& sample) {
    std::vector<TensorSpec> tensors = sample.tensors;
    std::erase_if(tensors, [](const TensorSpec& each) { return each.optional; });
    return tensors;
  }

  std::string input_, target_;       // what the model calls them
  std::vector<TensorSpec> tensors_;  // these, and what else it takes, as a mask is
  std::uint64_t seed_;
  TensorDraws draws_;
  std::int64_t length_;
  std::uint64_t vocab_size_;
};

// Inputs and targets of any number and type. A teacher gives the first target for the first input.
class RandomFeatures final : public RandomDataset {
 public:
  RandomFeatures(const RandomOptions& data, const SampleSpec& sample, std::uint64_t seed)
      : RandomDataset(data, seed, "data.random.features"),
        inputs_(inputs_of(sample)),
        target_(sample.target()),
        others_(others_of(sample)),
        seed_(seed),
        numbers_(static_cast<std::size_t>(c10::multiply_integers(inputs_.front().shape))),
        is_class_(target_.dtype == at::kLong),
        outputs_(static_cast<std::size_t>(is_class_ ? target_.range
                                                    : c10::multiply_integers(target_.shape))),
        taught_(inputs_.front().shape.size() == 1 ? numbers_ : std::min(numbers_, kTaught)),
        teacher_(stream_key(seed, "data.random.teacher"), taught_, outputs_) {}

  [[nodiscard]] Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                      std::int64_t step) const override {
    Microbatch batch = numbered(samples, step);
    const auto count = static_cast<std::int64_t>(samples.size());
    const at::Tensor taught = at::empty({count, static_cast<std::int64_t>(numbers_)}, at::kFloat);
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      batch.tensors.add(inputs_[k].name, draws_.draw(inputs_[k], stream_of(split, k), samples,
                                                     k == 0 ? taught : at::Tensor()));
    }
    batch.tensors.add(target_.name, targets_for(taught));
    for (const TensorSpec& each : others_) {
      batch.tensors.add(each.name,
                        draws_.draw(each, stream_key(seed_ ^ key(split), each.name), samples));
    }
    batch.valid = count;
    return batch;
  }

 private:
  // Of inputs with several dimensions, so that images of any size have a teacher.
  static constexpr std::size_t kTaught = 256;

  static std::vector<TensorSpec> inputs_of(const SampleSpec& sample) {
    std::vector<TensorSpec> inputs;
    for (const TensorSpec& each : sample.tensors) {
      if (each.role == TensorRole::kInput && !each.optional) inputs.push_back(each);
    }
    return inputs;
  }

  // Further targets, which nothing teaches.
  static std::vector<TensorSpec> others_of(const SampleSpec& sample) {
    std::vector<TensorSpec> others;
    for (const TensorSpec& each : sample.tensors) {
      const bool is_first = each.name == sample.target().name;
      if (each.role == TensorRole::kTarget && !each.optional && !is_first) others.push_back(each);
    }
    return others;
  }

  [[nodiscard]] std::uint64_t stream_of(Split split, std::size_t input) const {
    return input == 0 ? key(split) : stream_key(seed_ ^ key(split), inputs_[input].name);
  }

  [[nodiscard]] at::Tensor targets_for(const at::Tensor& taught) const {
    std::vector<std::int64_t> shape = target_.shape;
    shape.insert(shape.begin(), taught.size(0));
    at::Tensor targets = at::empty(shape, is_class_ ? at::kLong : at::kFloat);
    std::vector<double> scores(outputs_);
    const auto outputs = static_cast<std::int64_t>(outputs_);
    for (std::int64_t i = 0; i < taught.size(0); ++i) {
      const float* sample =
          taught.const_data_ptr<float>() + i * static_cast<std::int64_t>(numbers_);
      teacher_.score(std::span(sample, taught_), scores);
      if (is_class_) {
        const auto best = std::max_element(scores.begin(), scores.end());
        fill_classes(best - scores.begin(), targets[i]);
      } else {
        if (target_.range == 2) {  // answers, no values
          for (double& score : scores) score = score > 0 ? 1 : 0;
        }
        std::copy(scores.begin(), scores.end(), targets.mutable_data_ptr<float>() + i * outputs);
      }
    }
    return targets;
  }

  // Where a sample has several targets, each is the class after the one before it.
  void fill_classes(std::int64_t first, const at::Tensor& targets) const {
    auto* out = targets.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < targets.numel(); ++i) out[i] = (first + i) % target_.range;
  }

  std::vector<TensorSpec> inputs_;
  TensorSpec target_;
  std::vector<TensorSpec> others_;
  std::uint64_t seed_;
  std::size_t numbers_;  // of the first input
  bool is_class_;
  std::size_t outputs_;
  std::size_t taught_;  // the leading numbers that the teacher looks at
  LinearTeacher teacher_;
  TensorDraws draws_;
};

// The teacher chooses among classes.
void refuse_endless(const TensorSpec& target) {
  if (target.dtype != at::kLong || target.range > 0) return;
  throw UsageError("data.kind = \"random\" cannot draw the target " + quote(target.name, 200) +
                       ": it is of whole numbers, and nothing says below which",
                   "say it by its " + std::string(target.range_key));
}

class RandomKind final : public Declared<DataKind, RandomOptions> {
 public:
  RandomKind()
      : Declared("random", {KeysOf<RandomOptions>::number<&RandomOptions::held_out_fraction>(
                               "held_out_fraction", ranges::kBelowOne,
                               "> 0: there are held-out samples, a stream of their own")}) {}

  [[nodiscard]] std::int64_t max_held_out_samples(const Options& options) const override {
    return options.as<RandomOptions>().held_out_fraction > 0 ? kRandomHeldOutSamples : 0;
  }

  [[nodiscard]] std::unique_ptr<Dataset> open(const Options& options, const SampleSpec& sample,
                                              std::uint64_t seed) const override {
    const auto& data = options.as<RandomOptions>();
    if (sample.is_language()) return std::make_unique<RandomTokens>(data, sample, seed);
    refuse_endless(sample.target());
    return std::make_unique<RandomFeatures>(data, sample, seed);
  }
};

}  // namespace

const DataKind& random_kind() {
  static const RandomKind kKind;
  return kKind;
}

}  // namespace troika
