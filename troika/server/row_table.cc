#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/server/row_table.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

namespace troika {
namespace {

constexpr std::int64_t kFirstRows = 1024;

void check_ids(const at::Tensor& ids) {
  if (ids.dim() == 1 && ids.scalar_type() == at::kLong) return;
  throw DataError("the rows of a table are numbers of 64 bits, in one dimension");
}

}  // namespace

std::span<const std::string_view> row_rule_names() {
  static constexpr std::array<std::string_view, 3> kNames = {"sgd", "adagrad", "adam"};
  return kNames;
}

int shard_of_row(std::int64_t id, int shards) {
  return static_cast<int>(mix_bits(static_cast<std::uint64_t>(id)) %
                          static_cast<std::uint64_t>(shards));
}

RowGradients sum_of_rows(std::span<const RowGradients> pushed) {
  check(!pushed.empty(), "a sum of no rows");
  if (pushed.size() == 1) return pushed.front();
  std::vector<at::Tensor> ids, values;
  for (const RowGradients& each : pushed) {
    if (each.spec != pushed.front().spec) {
      throw DataError("workers have different options for the table '" + each.spec.name + "'");
    }
    ids.push_back(each.ids);
    values.push_back(each.values);
  }
  const auto [unique, places, counts] = at::_unique2(at::cat(ids), /*sorted=*/true,
                                                     /*return_inverse=*/true);
  const at::Tensor sum =
      at::zeros({unique.numel(), pushed.front().spec.columns}, values.front().options());
  sum.index_add_(0, places, at::cat(values));
  return {pushed.front().spec, unique, sum};
}

RowTable::RowTable(RowTableSpec spec, at::ScalarType type) : spec_(std::move(spec)), type_(type) {
  if (spec_.columns < 1) throw DataError("the table '" + spec_.name + "' has no columns");
  reserve(kFirstRows);
}

std::int64_t RowTable::states() const {
  return spec_.rule == RowRule::kSgd ? 0 : spec_.rule == RowRule::kAdagrad ? 1 : 2;
}

void RowTable::reserve(std::int64_t rows) {
  const std::int64_t capacity = values_.defined() ? values_.size(0) : 0;
  if (rows <= capacity) return;
  const std::int64_t grown = std::max(rows, 2 * capacity);
  const auto enlarge = [&](at::Tensor& kept) {
    at::Tensor larger = at::zeros({grown, spec_.columns}, at::TensorOptions(type_));
    if (capacity > 0) larger.narrow(0, 0, size()).copy_(kept.narrow(0, 0, size()));
    kept = larger;
  };
  enlarge(values_);
  states_.resize(static_cast<std::size_t>(states()));
  for (at::Tensor& state : states_) enlarge(state);
}

template <class T>
void RowTable::draw_row(const RandomStream& random, std::int64_t slot) {
  T* const row = values_.mutable_data_ptr<T>() + slot * spec_.columns;
  const double width = spec_.initial_std * std::sqrt(12.0);
  for (std::int64_t i = 0; i < spec_.columns; ++i) {
    row[i] = static_cast<T>(width * (random.uniform(static_cast<std::uint64_t>(i)) - 0.5));
  }
}

at::Tensor RowTable::slots_of(const at::Tensor& ids) {
  check_ids(ids);
  const at::Tensor contiguous = ids.contiguous();
  const std::span<const std::int64_t> wanted(contiguous.const_data_ptr<std::int64_t>(),
                                             static_cast<std::size_t>(contiguous.numel()));
  at::Tensor slots = at::empty({contiguous.numel()}, at::kLong);
  std::int64_t* slot = slots.mutable_data_ptr<std::int64_t>();
  const std::uint64_t key = stream_key(spec_.seed, spec_.name);
  for (const std::int64_t id : wanted) {
    const auto [found, is_new] = slots_.try_emplace(id, size());
    if (is_new) {
      reserve(size() + 1);
      const RandomStream random(key, static_cast<std::uint64_t>(id));
      type_ == at::kDouble ? draw_row<double>(random, found->second)
                           : draw_row<float>(random, found->second);
      ids_.push_back(id);
    }
    *slot++ = found->second;
  }
  return slots;
}

at::Tensor RowTable::read(const at::Tensor& ids) {
  const at::Tensor slots = slots_of(ids);
  return values_.index_select(0, slots);
}

void RowTable::update(const RowGradients& gradients, double learning_rate, double scale,
                      std::int64_t step) {
  check_ids(gradients.ids);
  if (gradients.values.sizes() != at::IntArrayRef({gradients.ids.numel(), spec_.columns}) ||
      gradients.values.scalar_type() != type_) {
    throw DataError("a worker has pushed gradients of another shape or type for the table '" +
                    spec_.name + "'");
  }
  const at::Tensor slots = slots_of(gradients.ids);
  const at::Tensor g = gradients.values * scale;
  const double rate = learning_rate * spec_.lr_factor;
  at::Tensor change;
  switch (spec_.rule) {
    case RowRule::kSgd:
      change = g;
      break;
    case RowRule::kAdagrad: {
      const at::Tensor squares = states_[0].index_select(0, slots).addcmul_(g, g);
      states_[0].index_copy_(0, slots, squares);
      change = g / squares.sqrt_().add_(spec_.eps);
      break;
    }
    case RowRule::kAdam: {
      const at::Tensor mean =
          states_[0].index_select(0, slots).mul_(spec_.beta1).add_(g, 1 - spec_.beta1);
      const at::Tensor square =
          states_[1].index_select(0, slots).mul_(spec_.beta2).addcmul_(g, g, 1 - spec_.beta2);
      states_[0].index_copy_(0, slots, mean);
      states_[1].index_copy_(0, slots, square);
      const auto t = static_cast<double>(step);
      const double mean_bias = 1 - std::pow(spec_.beta1, t);
      const double square_bias = 1 - std::pow(spec_.beta2, t);
      change = (mean / mean_bias).div_((square / square_bias).sqrt_().add_(spec_.eps));
      break;
    }
  }
  values_.index_add_(0, slots, change, -rate);
}

RowTable::Content RowTable::content() const {
  Content content;
  content.ids = at::empty({size()}, at::kLong);
  std::ranges::copy(ids_, content.ids.mutable_data_ptr<std::int64_t>());
  content.values = values_.narrow(0, 0, size());
  for (const at::Tensor& state : states_) content.states.push_back(state.narrow(0, 0, size()));
  return content;
}

void RowTable::restore(const Content& content) {
  const auto fits = [&](const at::Tensor& values) {
    return values.sizes() == at::IntArrayRef({content.ids.numel(), spec_.columns}) &&
           values.scalar_type() == type_;
  };
  check_ids(content.ids);
  if (!fits(content.values) || std::ssize(content.states) != states() ||
      !std::ranges::all_of(content.states, fits)) {
    throw DataError("what is saved of the table '" + spec_.name + "' is of another one");
  }
  slots_.clear();
  ids_.clear();
  const std::span<const std::int64_t> ids(content.ids.const_data_ptr<std::int64_t>(),
                                          static_cast<std::size_t>(content.ids.numel()));
  reserve(std::ssize(ids));
  for (const std::int64_t id : ids) {
    if (!slots_.emplace(id, size()).second) {
      throw DataError("what is saved of the table '" + spec_.name + "' has a row twice");
    }
    ids_.push_back(id);
  }
  values_.narrow(0, 0, size()).copy_(content.values);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    states_[i].narrow(0, 0, size()).copy_(content.states[i]);
  }
}

}  // namespace troika
