#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/param/arena.h>
#include <troika/param/drawing.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace troika {
namespace {

// Those with storage of their own, in storage order.
std::vector<const ParameterSpec*> ordered(std::span<const ParameterSpec> specs) {
  std::vector<const ParameterSpec*> own;
  for (const ParameterSpec& spec : specs) {
    if (spec.tied_to.empty()) own.push_back(&spec);
  }
  std::ranges::stable_sort(
      own, {}, [](const ParameterSpec* spec) { return std::pair(spec->frozen, spec->unit); });
  return own;
}

ArenaLayoutOptions arena_layout_options(const Sharding& sharding) {
  ArenaLayoutOptions options{.stage = sharding.stage, .buckets = sharding.buckets};
  if (sharding.stage == 0) return options;
  options.shards = sharding.shard.size();
  options.shard = sharding.shard.rank();
  return options;
}

// The bucket of a parameter.
const Bucket& bucket_of(const ArenaLayout& layout, std::size_t parameter) {
  return *std::ranges::upper_bound(layout.buckets(), parameter, {}, &Bucket::last_parameter);
}

}  // namespace

Arena::Arena(std::span<const ParameterSpec> specs, NumericTypes types, Sharding sharding,
             at::Device device)
    : types_(types),
      given_device_(device),
      sharding_(std::move(sharding)),
      layout_(ordered(specs), types, arena_layout_options(sharding_)) {
  allocate_storages();
  make_parameters(ordered(specs));
  make_local_shards();
  name_tied(specs);
  find_buckets(specs);
}

bool Arena::keeps_masters() const {
  return sharding_.stage == 0 || (!is_mixed() && keeps_working_weights());
}

bool Arena::keeps_gradients() const {
  const bool sums_microbatches = sharding_.microbatches_per_step > 1 &&
                                 sharding_.cut_gradients == CutGradients::kLastMicrobatch;
  return sharding_.stage < 2 || sums_microbatches || sharding_.splits_backward;
}

std::int64_t Arena::master_size() const {
  return static_cast<std::int64_t>(c10::elementSize(types_.master));
}

at::Tensor Arena::allocate(std::int64_t bytes, Storage kind) {
  bytes_[static_cast<std::size_t>(kind)] += bytes;
  return sharding_.shard.allocate(static_cast<std::size_t>(bytes), given_device_);
}

std::int64_t Arena::trained_master_bytes() const {
  return (keeps_masters() ? layout_.trained_elements() : layout_.own_trained_elements()) *
         master_size();
}

void Arena::allocate_storages() {
  const std::int64_t values = keeps_masters() ? layout_.elements() : layout_.own_elements();
  const std::int64_t trained =
      keeps_gradients() ? layout_.trained_elements() : layout_.own_trained_elements();
  masters_ =
      allocate(is_mixed() ? trained_master_bytes() : values * master_size(), Storage::kMasters)
          .view(types_.master);
  gradients_ = allocate(trained * master_size(), Storage::kGradients).view(types_.master);
  working_weights_ = is_mixed() ? allocate(keeps_working_weights() ? layout_.working_bytes()
                                                                   : layout_.own_working_bytes(),
                                           Storage::kWorkingWeights)
                                : masters_.view(at::kByte);
}

void Arena::make_parameters(std::span<const ParameterSpec* const> specs) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ParameterSpec& spec = *specs[i];
    const Slot& slot = layout_.slots()[i];
    const auto view = [&](bool kept, const at::Tensor& storage) {
      if (!kept) return at::Tensor();
      return storage.narrow(0, slot.offset, slot.count).view(spec.local_shape());
    };
    at::Tensor master = view(keeps_masters() && !lacks_master(spec), masters_);
    at::Tensor working_weight;
    if (slot.working_element_size == 0) {
      working_weight = master;
    } else if (keeps_working_weights()) {
      working_weight = working_weight_in(i, spec, 0, working_weights_);
    }
    if (lacks_master(spec)) master = working_weight;
    parameters_.push_back(std::make_unique<Parameter>(
        spec, types_.master, std::move(master), std::move(working_weight),
        view(keeps_gradients() && !spec.frozen, gradients_)));
    by_name_.emplace_back(spec.name, parameters_.back().get());
  }
  std::ranges::sort(by_name_);
}

at::Tensor Arena::working_weight_in(std::size_t parameter, const ParameterSpec& spec,
                                    std::int64_t working_begin, const at::Tensor& bytes) const {
  const Slot& slot = layout_.slots()[parameter];
  return bytes
      .narrow(0, slot.working_offset - working_begin, slot.count * slot.working_element_size)
      .view(types_.working(spec))
      .view(spec.local_shape());
}

void Arena::make_local_shards() {
  for (const ShardRange& range : layout_.shard_ranges()) {
    const ParameterSpec& spec = parameters_[range.parameter]->spec();
    const Slot& slot = layout_.slots()[range.parameter];
    const Bucket& bucket = bucket_of(layout_, range.parameter);
    const auto own = static_cast<std::size_t>(layout_.shard());
    const std::int64_t element = slot.offset + range.begin;
    const std::int64_t own_element = bucket.own_offset + element - bucket.borders[own];
    const auto own_view = [&](bool whole, const at::Tensor& storage) {
      return storage.narrow(0, whole ? element : own_element, range.count);
    };
    LocalShard& shard = local_shards_.emplace_back();
    shard.parameter = range.parameter;
    shard.begin = range.begin;
    shard.count = range.count;
    if (!spec.frozen) {
      trained_shards_ = local_shards_.size();
      shard.gradient = own_view(keeps_gradients(), gradients_);
    }
    if (!lacks_master(spec)) shard.master = own_view(keeps_masters(), masters_);
    shard.working_weight = shard.master;
    if (slot.working_element_size == 0) continue;
    const std::int64_t byte = slot.working_offset + range.begin * slot.working_element_size;
    const std::int64_t own_byte = bucket.own_working_offset + byte - bucket.working_borders[own];
    shard.working_weight = working_weights_
                               .narrow(0, keeps_working_weights() ? byte : own_byte,
                                       range.count * slot.working_element_size)
                               .view(types_.working(spec));
    if (lacks_master(spec)) shard.master = shard.working_weight;
  }
}

void Arena::find_buckets(std::span<const ParameterSpec> specs) {
  int last = layout_.units();
  for (const ParameterSpec& spec : specs) last = std::max(last, spec.unit + 1);
  buckets_of_.resize(static_cast<std::size_t>(last));
  std::map<const Parameter*, std::size_t> bucket_of_parameter;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    bucket_of_parameter[parameters_[i].get()] =
        static_cast<std::size_t>(&bucket_of(layout_, i) - layout_.buckets().data());
  }
  for (const ParameterSpec& spec : specs) {
    buckets_of_[static_cast<std::size_t>(spec.unit)].push_back(
        bucket_of_parameter.at(&parameter(spec.name)));
  }
  for (auto& found : buckets_of_) {
    std::ranges::sort(found);
    found.erase(std::ranges::unique(found).begin(), found.end());
  }
}

void Arena::name_tied(std::span<const ParameterSpec> specs) {
  std::vector<std::pair<std::string, Parameter*>> tied;  // by_name_ stays sorted while it is read
  for (const ParameterSpec& spec : specs) {
    if (spec.tied_to.empty()) continue;
    Parameter& target = parameter(spec.tied_to);
    check(target.spec().local_shape() == spec.local_shape(),
          "'" + spec.name + "' is tied to a parameter of another shape, '" + spec.tied_to + "'");
    tied.emplace_back(spec.name, &target);
  }
  by_name_.insert(by_name_.end(), tied.begin(), tied.end());
  std::ranges::sort(by_name_);
  const auto twice =
      std::ranges::adjacent_find(by_name_, {}, [](const auto& e) { return e.first; });
  if (twice != by_name_.end()) check(false, "two parameters are called '" + twice->first + "'");
}

Parameter& Arena::parameter(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      by_name_, name, {}, [](const auto& e) -> std::string_view { return e.first; });
  if (found == by_name_.end() || found->first != name) {
    throw InternalError("internal error: no parameter '" + std::string(name) + "' in the arena");
  }
  return *found->second;
}

std::span<const std::size_t> Arena::buckets_of(int unit) const {
  if (unit >= std::ssize(buckets_of_)) return {};
  return buckets_of_[static_cast<std::size_t>(unit)];
}

std::span<const std::size_t> Arena::trained_buckets_of(int unit) const {
  const std::span<const std::size_t> all = buckets_of(unit);
  const auto end = std::ranges::lower_bound(all, layout_.trained_buckets().size());
  return all.first(static_cast<std::size_t>(end - all.begin()));
}

at::Tensor Arena::flat(const at::Tensor& storage, int first_unit, int last_unit) const {
  const std::int64_t begin = layout_.unit_begin(first_unit);
  return storage.narrow(0, begin, layout_.unit_begin(last_unit) - begin);
}

at::Tensor Arena::gradients(int first_unit, int last_unit) const {
  check(keeps_gradients(), "gradients of which a rank keeps its own shard only are not whole");
  return flat(gradients_, first_unit, last_unit);
}

at::Tensor Arena::masters(int first_unit, int last_unit) const {
  check(keeps_masters(), "masters of which a rank keeps its own shard only are not whole");
  return flat(masters_, first_unit, last_unit);
}

at::Tensor Arena::working_weights_of(const Bucket& bucket) const {
  check(keeps_working_weights(),
        "working weights of which a rank keeps its own shard only are not whole");
  return working_weights_.narrow(0, bucket.working_borders.front(), bucket.working_bytes());
}

at::Tensor Arena::own_working_weights_of(const Bucket& bucket) const {
  const auto own = static_cast<std::size_t>(layout_.shard());
  const std::int64_t begin = bucket.working_borders[own];
  return working_weights_.narrow(0, keeps_working_weights() ? begin : bucket.own_working_offset,
                                 bucket.working_borders[own + 1] - begin);
}

at::Tensor Arena::gradients_of(const Bucket& bucket) const {
  check(keeps_gradients(), "gradients of which a rank keeps its own shard only are not whole");
  return gradients_.narrow(0, bucket.begin(), bucket.count());
}

at::Tensor Arena::own_gradients_of(const Bucket& bucket) const {
  const auto own = static_cast<std::size_t>(layout_.shard());
  const std::int64_t begin = bucket.borders[own];
  return gradients_.narrow(0, keeps_gradients() ? begin : bucket.own_offset,
                           bucket.borders[own + 1] - begin);
}

void Arena::set_working_weights(const Bucket& bucket, const at::Tensor& bytes) {
  for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    parameters_[i]->set_working_weight(
        bytes.defined()
            ? working_weight_in(i, parameters_[i]->spec(), bucket.working_borders.front(), bytes)
            : at::Tensor());
  }
}

void Arena::set_gradients(const Bucket& bucket, const at::Tensor& elements) {
  for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    const Slot& slot = layout_.slots()[i];
    parameters_[i]->set_gradient(elements.defined()
                                     ? elements.narrow(0, slot.offset - bucket.begin(), slot.count)
                                           .view(parameters_[i]->spec().local_shape())
                                     : at::Tensor());
  }
}

at::Tensor Arena::allocate_state() {
  return allocate(layout_.own_trained_elements() * master_size(), Storage::kState)
      .view(types_.master);
}

at::Tensor Arena::view_of(std::size_t shard, const at::Tensor& state) const {
  const ShardRange& range = layout_.shard_ranges()[shard];
  const Bucket& bucket = bucket_of(layout_, range.parameter);
  const std::int64_t element = layout_.slots()[range.parameter].offset + range.begin;
  const std::int64_t begin = bucket.borders[static_cast<std::size_t>(layout_.shard())];
  return state.narrow(0, bucket.own_offset + element - begin, range.count);
}

std::int64_t Arena::parameter_count() const {
  return std::accumulate(layout_.slots().begin(), layout_.slots().end(), std::int64_t{0},
                         [](std::int64_t sum, const Slot& slot) { return sum + slot.count; });
}

namespace {

// Draws elements [begin, ...) of a parameter into `flat`. They are rounded through `rounded` first,
// where it is given.
void draw_into(const at::Tensor& flat, const ParameterSpec& spec, std::uint64_t seed,
               std::int64_t begin, std::optional<at::ScalarType> rounded) {
  for (std::int64_t first = 0; first < flat.numel(); first += kDrawnAtOnce) {
    const std::int64_t count = std::min(kDrawnAtOnce, flat.numel() - first);
    const at::Tensor drawn = initial_values(spec, seed, begin + first, count);
    flat.narrow(0, first, count).copy_(rounded ? drawn.to(*rounded) : drawn);
  }
}

}  // namespace

void Arena::initialize(std::uint64_t seed) {
  for (const LocalShard& shard : local_shards_) {
    const ParameterSpec& spec = parameters_[shard.parameter]->spec();
    // Rounded as the working weight of a trained parameter is, from the master's type.
    draw_into(shard.master.view({-1}), spec, seed, shard.begin,
              lacks_master(spec) ? std::optional(types_.master) : std::nullopt);
  }
  publish();
  if (sharding_.stage == 0 || !keeps_working_weights()) return;
  for (const auto& parameter : parameters_) {  // those of the other ranks' shards
    draw_into(parameter->working_weight().view({-1}), parameter->spec(), seed, 0, types_.master);
  }
}

void Arena::publish() {
  if (!is_mixed()) return;
  for (const LocalShard& shard : local_shards_) {
    if (!shard.working_weight.is_same(shard.master)) shard.working_weight.copy_(shard.master);
  }
}

void Arena::release_gradients() {
  for (const auto& parameter : parameters_) parameter->release_gradient();
}

}  // namespace troika
