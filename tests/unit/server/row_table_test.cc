// Tables of rows: what is the same on every server, what an update changes, and what of a message
// is refused.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/server/messages.h>
#include <troika/server/row_table.h>

namespace troika {
namespace {

using messages::Json;
using testing::HasSubstr;

RowTableSpec spec_of(RowRule rule = RowRule::kSgd) {
  return {.name = "words", .columns = 3, .initial_std = 1, .rule = rule};
}

at::Tensor ids(std::vector<std::int64_t> values) {
  return at::tensor(values, at::kLong);
}

TEST(RowTable, MakesARowWhichIsTheSameOnAnyServer) {
  RowTable one(spec_of(), at::kDouble), other(spec_of(), at::kDouble);
  const at::Tensor first = one.read(ids({5, -7, 5}));
  EXPECT_EQ(one.size(), 2);
  EXPECT_TRUE(at::equal(first[0], first[2]));
  EXPECT_FALSE(at::equal(first[0], first[1]));
  static_cast<void>(other.read(ids({1, 2, 3})));
  EXPECT_TRUE(at::equal(other.read(ids({-7, 5})), one.read(ids({-7, 5}))));
  RowTableSpec seeded = spec_of();
  seeded.seed = 1;
  EXPECT_FALSE(at::equal(RowTable(seeded, at::kDouble).read(ids({5})), first[0].unsqueeze(0)));
}

TEST(RowTable, DrawsRowsOfTheirDeviation) {
  RowTableSpec spec = spec_of();
  spec.initial_std = 0.1;
  RowTable table(spec, at::kFloat);
  const at::Tensor rows = table.read(at::arange(20'000, at::kLong));
  EXPECT_NEAR(rows.std().item<double>(), 0.1, 0.001);
  EXPECT_NEAR(rows.mean().item<double>(), 0, 0.002);
}

TEST(RowTable, ChangesTheRowsOfAnUpdateAlone) {
  for (const RowRule rule : {RowRule::kSgd, RowRule::kAdagrad, RowRule::kAdam}) {
    RowTable table(spec_of(rule), at::kDouble);
    const at::Tensor before = table.read(ids({1, 2, 3}));
    table.update({spec_of(rule), ids({3, 9}), at::ones({2, 3}, at::kDouble)}, 0.5, 2, 1);
    const at::Tensor after = table.read(ids({1, 2, 3}));
    EXPECT_TRUE(at::equal(after.narrow(0, 0, 2), before.narrow(0, 0, 2)));
    // The first step of Adagrad and Adam is the sign of the gradient.
    const double expected = rule == RowRule::kSgd ? 1 : 0.5;
    EXPECT_TRUE(at::allclose(before[2] - after[2], at::full({3}, expected, at::kDouble)));
    EXPECT_EQ(table.size(), 4);  // 9 is new
  }
}

TEST(RowTable, ComesBackFromItsContent) {
  RowTable table(spec_of(RowRule::kAdam), at::kDouble), other(spec_of(RowRule::kAdam), at::kDouble);
  const RowGradients gradients{spec_of(RowRule::kAdam), at::arange(3000, at::kLong),
                               at::randn({3000, 3}, at::kDouble)};
  table.update(gradients, 0.1, 1, 1);
  other.restore(table.content());
  table.update(gradients, 0.1, 1, 2);
  other.update(gradients, 0.1, 1, 2);
  EXPECT_TRUE(at::equal(table.read(gradients.ids), other.read(gradients.ids)));
  RowTable::Content broken = table.content();
  broken.states.pop_back();
  EXPECT_THROW(other.restore(broken), DataError);
  broken = table.content();
  broken.ids = at::zeros_like(broken.ids);
  EXPECT_THROW(other.restore(broken), DataError);
}

TEST(RowTable, AddsUpWhatWorkersHavePushed) {
  const at::Tensor ones = at::ones({2, 3}, at::kDouble);
  const std::vector<RowGradients> pushed = {{spec_of(), ids({4, 1}), ones},
                                            {spec_of(), ids({1, 8}), ones * 10}};
  const RowGradients sum = sum_of_rows(pushed);
  EXPECT_TRUE(at::equal(sum.ids, ids({1, 4, 8})));
  EXPECT_TRUE(at::equal(sum.values.select(1, 0), at::tensor({11.0, 1.0, 10.0}, at::kDouble)));
  RowTableSpec other = spec_of();
  other.lr_factor = 2;
  EXPECT_THROW(
      static_cast<void>(sum_of_rows(std::vector<RowGradients>{pushed[0], {other, ids({1}), ones}})),
      DataError);
}

// A message as a worker sends it, and what is left of it where it is cut off or lies.
TEST(RowTable, ReadsRowsOffTheFrontOfAMessage) {
  const std::vector<RowGradients> rows = {
      {spec_of(), ids({4, 1}), at::arange(6, at::kFloat).view({2, 3})},
      {{.name = "unused", .columns = 2}, ids({}), at::ones({0, 2}, at::kFloat)},
      {{.name = "users", .columns = 1}, ids({7}), at::ones({1, 1}, at::kFloat)}};
  Json header = Json::object();
  std::vector<std::span<const std::byte>> parts;
  messages::add_rows(header, parts, rows);
  const at::Tensor dense = at::ones({2}, at::kFloat);
  parts.emplace_back(messages::bytes_of(dense));
  std::vector<std::byte> bytes;
  for (const auto part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
  std::span<const std::byte> body = bytes;
  const std::vector<RowGradients> read = messages::take_rows(header, body, at::kFloat);
  EXPECT_EQ(body.size(), dense.nbytes());
  ASSERT_EQ(read.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(read[i].spec, rows[i].spec);
    EXPECT_TRUE(at::equal(read[i].ids, rows[i].ids));
    EXPECT_TRUE(at::equal(read[i].values, rows[i].values));
  }
  const std::size_t whole = bytes.size() - dense.nbytes();
  for (std::size_t size = 0; size < whole; ++size) {
    body = std::span<const std::byte>(bytes).first(size);
    EXPECT_THROW(static_cast<void>(messages::take_rows(header, body, at::kFloat)), DataError);
  }
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"rows", -1},
                                                 {"rows", std::int64_t{1} << 62},
                                                 {"columns", 0},
                                                 {"columns", -1},
                                                 {"columns", std::int64_t{1} << 40},
                                                 {"rule", "other"},
                                                 {"name", 3}}) {
    Json lying = header;
    lying["tables"][0][key] = value;
    body = bytes;
    EXPECT_THROW(static_cast<void>(messages::take_rows(lying, body, at::kFloat)), DataError) << key;
  }
}

TEST(RowTable, RefusesRowsOfAnotherShape) {
  RowTable table(spec_of(), at::kDouble);
  EXPECT_THROW(static_cast<void>(table.read(at::ones({2, 2}, at::kLong))), DataError);
  EXPECT_THROW(static_cast<void>(table.read(at::ones({2}, at::kInt))), DataError);
  EXPECT_THROW(table.update({spec_of(), ids({1}), at::ones({1, 4}, at::kDouble)}, 1, 1, 1),
               DataError);
  EXPECT_THROW(table.update({spec_of(), ids({1}), at::ones({1, 3}, at::kFloat)}, 1, 1, 1),
               DataError);
}

}  // namespace
}  // namespace troika
