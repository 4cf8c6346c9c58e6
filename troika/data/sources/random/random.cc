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

class RandomTokens final : public RandomDataset {
 public:
  RandomTokens(const RandomOptions& data, const TensorSpec& tokens, std::uint64_t seed)
      : RandomDataset(data, seed, "data.random.tokens"),
        length_(tokens.shape.front()),
        vocab_size_(static_cast<std::uint64_t>(tokens.range)) {}

  [[nodiscard]] Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                      std::int64_t step) const override {
    Microbatch batch = numbered(samples, step);
    const auto count = static_cast<std::int64_t>(samples.size());
    batch.tensors = {{"input_ids", at::empty({count, length_}, at::kLong)},
                     {"targets", at::empty({count, length_}, at::kLong)}};
    auto* inputs = batch.tensors[0].mutable_data_ptr<std::int64_t>();
    auto* targets = batch.tensors[1].mutable_data_ptr<std::int64_t>();
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
  std::int64_t length_;
  std::uint64_t vocab_size_;
};

class RandomFeatures final : public RandomDataset {
 public:
  RandomFeatures(const RandomOptions& data, const SampleSpec& sample, std::uint64_t seed)
      : RandomDataset(data, seed, "data.random.features"),
        input_(sample.input()),
        target_(sample.target()),
        shape_(input_.shape),
        inputs_(static_cast<std::size_t>(c10::multiply_integers(shape_))),
        is_class_(target_.dtype == at::kLong),
        outputs_(static_cast<std::size_t>(is_class_ ? target_.range : target_.shape.front())),
        taught_(shape_.size() == 1 ? inputs_ : std::min(inputs_, kTaught)),
        teacher_(stream_key(seed, "data.random.teacher"), taught_, outputs_) {}

  [[nodiscard]] Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                      std::int64_t step) const override {
    Microbatch batch = numbered(samples, step);
    const auto count = static_cast<std::int64_t>(samples.size());
    const auto outputs = static_cast<std::int64_t>(outputs_);
    std::vector<std::int64_t> shape = shape_;
    shape.insert(shape.begin(), count);
    const at::Tensor inputs = at::empty(shape, at::kFloat);
    const at::Tensor targets =
        is_class_ ? at::empty({count}, at::kLong) : at::empty({count, outputs}, at::kFloat);
    batch.tensors = {{input_.name, inputs}, {target_.name, targets}};
    auto* features = inputs.mutable_data_ptr<float>();
    std::vector<double> scores(outputs_);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::span<float> sample(features + i * static_cast<std::int64_t>(inputs_), inputs_);
      normal_.fill(key(split),
                   static_cast<std::uint64_t>(samples[static_cast<std::size_t>(i)].index), sample);
      teacher_.score(sample.first(taught_), scores);
      if (is_class_) {
        const auto best = std::max_element(scores.begin(), scores.end());
        targets.mutable_data_ptr<std::int64_t>()[i] = best - scores.begin();
      } else {
        if (target_.range == 2) {  // answers, no values
          for (double& score : scores) score = score > 0 ? 1 : 0;
        }
        std::copy(scores.begin(), scores.end(), targets.mutable_data_ptr<float>() + i * outputs);
      }
    }
    batch.valid = count;
    return batch;
  }

 private:
  // Of inputs with several dimensions, so that images of any size have a teacher.
  static constexpr std::size_t kTaught = 256;

  TensorSpec input_, target_;
  std::vector<std::int64_t> shape_;  // of one sample
  std::size_t inputs_;
  bool is_class_;
  std::size_t outputs_;
  std::size_t taught_;  // the leading inputs that the teacher looks at
  LinearTeacher teacher_;
  NormalTable normal_;
};

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
    if (sample.is_language()) return std::make_unique<RandomTokens>(data, sample.input(), seed);
    return std::make_unique<RandomFeatures>(data, sample, seed);
  }
};

}  // namespace

const DataKind& random_kind() {
  static const RandomKind kKind;
  return kKind;
}

}  // namespace troika
