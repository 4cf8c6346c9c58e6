#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/param/arena.h>

#include <algorithm>
#include <numeric>

namespace troika {
namespace {

// Those with storage of their own, in storage order.
std::vector<const ParameterSpec*> ordered(std::span<const ParameterSpec> specs) {
  std::vector<const ParameterSpec*> own;
  for (const ParameterSpec& spec : specs) {
    if (spec.tied_to.empty()) own.push_back(&spec);
  }
  std::ranges::stable_sort(own, {}, &ParameterSpec::unit);
  return own;
}

LayoutOptions layout_options(const Sharding& sharding) {
  LayoutOptions options{.stage = sharding.stage, .buckets = sharding.buckets};
  if (sharding.stage == 0) return options;
  options.shards = sharding.shard.size();
  options.shard = sharding.shard.rank();
  return options;
}

// The block of a parameter.
const Block& block_of(const Layout& layout, std::size_t parameter) {
  return *std::ranges::upper_bound(layout.blocks(), parameter, {}, &Block::last_parameter);
}

}  // namespace

Arena::Arena(std::span<const ParameterSpec> specs, NumericTypes types, Sharding sharding)
    : types_(types),
      sharding_(std::move(sharding)),
      layout_(ordered(specs), types, layout_options(sharding_)) {
  allocate_storages();
  make_parameters(ordered(specs));
  make_pieces();
  name_tied(specs);
  find_blocks(specs);
}

bool Arena::keeps_masters() const {
  return sharding_.stage == 0 || (!is_mixed() && keeps_values());
}

bool Arena::keeps_gradients() const {
  return sharding_.stage < 2 || sharding_.microbatches_per_step > 1 || sharding_.splits_backward;
}

std::int64_t Arena::master_size() const {
  return static_cast<std::int64_t>(c10::elementSize(types_.master));
}

at::Tensor Arena::allocate(std::int64_t bytes, Storage kind) {
  bytes_[static_cast<std::size_t>(kind)] += bytes;
  return sharding_.shard.allocate(static_cast<std::size_t>(bytes));
}

void Arena::allocate_storages() {
  const std::int64_t whole = layout_.elements() * master_size();
  const std::int64_t own = layout_.own_elements() * master_size();
  masters_ = allocate(keeps_masters() ? whole : own, Storage::kMasters).view(types_.master);
  gradients_ = allocate(keeps_gradients() ? whole : own, Storage::kGradients).view(types_.master);
  values_ = is_mixed()
                ? allocate(keeps_values() ? layout_.value_bytes() : layout_.own_value_bytes(),
                           Storage::kValues)
                : masters_.view(at::kByte);
}

void Arena::make_parameters(std::span<const ParameterSpec* const> specs) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Slot& slot = layout_.slots()[i];
    const auto view = [&](bool kept, const at::Tensor& storage) {
      if (!kept) return at::Tensor();
      return storage.narrow(0, slot.offset, slot.count).view(specs[i]->local_shape());
    };
    parameters_.push_back(std::make_unique<Parameter>(*specs[i], types_.master,
                                                      view(keeps_masters(), masters_), at::Tensor(),
                                                      view(keeps_gradients(), gradients_)));
    Parameter& parameter = *parameters_.back();
    if (slot.value_size == 0) {
      parameter.set_value(parameter.master());
    } else if (keeps_values()) {
      parameter.set_value(value_in(i, 0, values_));
    }
    by_name_.emplace_back(specs[i]->name, &parameter);
  }
  std::ranges::sort(by_name_);
}

at::Tensor Arena::value_in(std::size_t parameter, std::int64_t value_begin,
                           const at::Tensor& bytes) const {
  const Slot& slot = layout_.slots()[parameter];
  const ParameterSpec& spec = parameters_[parameter]->spec();
  return bytes.narrow(0, slot.value_offset - value_begin, slot.count * slot.value_size)
      .view(spec.precise ? types_.master : types_.compute)
      .view(spec.local_shape());
}

void Arena::make_pieces() {
  for (const PieceRange& range : layout_.pieces()) {
    const Slot& slot = layout_.slots()[range.parameter];
    const Block& block = block_of(layout_, range.parameter);
    const auto own = static_cast<std::size_t>(layout_.shard());
    const std::int64_t element = slot.offset + range.begin;
    const std::int64_t own_element = block.own_offset + element - block.borders[own];
    const auto part = [&](bool whole, const at::Tensor& storage) {
      return storage.narrow(0, whole ? element : own_element, range.count);
    };
    Piece& piece = pieces_.emplace_back();
    piece.parameter = range.parameter;
    piece.begin = range.begin;
    piece.count = range.count;
    piece.master = part(keeps_masters(), masters_);
    piece.gradient = part(keeps_gradients(), gradients_);
    piece.value = piece.master;
    if (slot.value_size == 0) continue;
    const std::int64_t byte = slot.value_offset + range.begin * slot.value_size;
    const std::int64_t own_byte = block.own_value_offset + byte - block.value_borders[own];
    const bool precise = parameters_[range.parameter]->spec().precise;
    piece.value = values_.narrow(0, keeps_values() ? byte : own_byte, range.count * slot.value_size)
                      .view(precise ? types_.master : types_.compute);
  }
}

void Arena::find_blocks(std::span<const ParameterSpec> specs) {
  int last = layout_.units();
  for (const ParameterSpec& spec : specs) last = std::max(last, spec.unit + 1);
  blocks_of_.resize(static_cast<std::size_t>(last));
  const auto blocks = layout_.blocks();
  for (const ParameterSpec& spec : specs) {
    const int unit = spec.tied_to.empty() ? spec.unit : parameter(spec.tied_to).spec().unit;
    const auto block = std::ranges::upper_bound(blocks, unit, {}, &Block::last_unit);
    auto& found = blocks_of_[static_cast<std::size_t>(spec.unit)];
    found.push_back(static_cast<std::size_t>(block - blocks.begin()));
  }
  for (auto& found : blocks_of_) {
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

std::span<const std::size_t> Arena::blocks_of(int unit) const {
  if (unit >= std::ssize(blocks_of_)) return {};
  return blocks_of_[static_cast<std::size_t>(unit)];
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

at::Tensor Arena::values_of(const Block& block) const {
  check(keeps_values(), "values of which a rank keeps its own shard only are not whole");
  return values_.narrow(0, block.value_borders.front(), block.value_bytes());
}

at::Tensor Arena::own_values_of(const Block& block) const {
  const auto own = static_cast<std::size_t>(layout_.shard());
  const std::int64_t begin = block.value_borders[own];
  return values_.narrow(0, keeps_values() ? begin : block.own_value_offset,
                        block.value_borders[own + 1] - begin);
}

at::Tensor Arena::gradients_of(const Block& block) const {
  check(keeps_gradients(), "gradients of which a rank keeps its own shard only are not whole");
  return gradients_.narrow(0, block.begin(), block.count());
}

at::Tensor Arena::own_gradients_of(const Block& block) const {
  const auto own = static_cast<std::size_t>(layout_.shard());
  const std::int64_t begin = block.borders[own];
  return gradients_.narrow(0, keeps_gradients() ? begin : block.own_offset,
                           block.borders[own + 1] - begin);
}

void Arena::set_values(const Block& block, const at::Tensor& bytes) {
  for (std::size_t i = block.first_parameter; i < block.last_parameter; ++i) {
    parameters_[i]->set_value(bytes.defined() ? value_in(i, block.value_borders.front(), bytes)
                                              : at::Tensor());
  }
}

void Arena::set_gradients(const Block& block, const at::Tensor& elements) {
  for (std::size_t i = block.first_parameter; i < block.last_parameter; ++i) {
    const Slot& slot = layout_.slots()[i];
    parameters_[i]->set_gradient(elements.defined()
                                     ? elements.narrow(0, slot.offset - block.begin(), slot.count)
                                           .view(parameters_[i]->spec().local_shape())
                                     : at::Tensor());
  }
}

at::Tensor Arena::allocate_state() {
  return allocate(layout_.own_elements() * master_size(), Storage::kState).view(types_.master);
}

at::Tensor Arena::view_of(std::size_t piece, const at::Tensor& state) const {
  const PieceRange& range = layout_.pieces()[piece];
  const Block& block = block_of(layout_, range.parameter);
  const std::int64_t element = layout_.slots()[range.parameter].offset + range.begin;
  const std::int64_t begin = block.borders[static_cast<std::size_t>(layout_.shard())];
  return state.narrow(0, block.own_offset + element - begin, range.count);
}

std::int64_t Arena::parameter_count() const {
  return std::accumulate(layout_.slots().begin(), layout_.slots().end(), std::int64_t{0},
                         [](std::int64_t sum, const Slot& slot) { return sum + slot.count; });
}

void Arena::initialize(std::uint64_t seed) {
  for (const Piece& piece : pieces_) {
    const ParameterSpec& spec = parameters_[piece.parameter]->spec();
    piece.master.copy_(initial_values(spec, seed, piece.begin, piece.count));
  }
  publish();
  if (sharding_.stage == 0 || !keeps_values()) return;
  for (const auto& parameter : parameters_) {  // those of the other ranks' pieces
    parameter->value().copy_(initial_values(parameter->spec(), seed).to(types_.master));
  }
}

void Arena::publish() {
  if (!is_mixed()) return;
  for (const Piece& piece : pieces_) {
    if (!piece.value.is_same(piece.master)) piece.value.copy_(piece.master);
  }
}

void Arena::release_gradients() {
  for (const auto& parameter : parameters_) parameter->release_gradient();
}

}  // namespace troika
