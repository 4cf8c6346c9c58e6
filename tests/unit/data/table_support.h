// What the tests of tables share: samples, columns, and a folder with a table.
#pragma once

#include <troika/base/plugin_folder.h>
#include <troika/base/text.h>
#include <troika/data/sources/table/table_dataset.h>
#include <unit/data/support.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace troika {

using Row = std::vector<double>;

inline constexpr std::int64_t kOpen = 0;  // a size that the data say

inline SampleSpec classes(std::int64_t features, std::int64_t count) {
  return {{{"features", at::kFloat, {features}},
           {"targets", at::kLong, {}, count, "output_dim", TensorRole::kTarget}}};
}

inline SampleSpec values(std::int64_t features, std::int64_t outputs) {
  return {{{"features", at::kFloat, {features}},
           {"targets", at::kFloat, {outputs}, 0, {}, TensorRole::kTarget}}};
}

inline ColumnOptions column(const std::string& name, ColumnUse as) {
  ColumnOptions options;
  options.name = name;
  options.as = as;
  return options;
}

inline ColumnOptions number(const std::string& name, Normalise normalise = Normalise::kNone,
                            Missing missing = Missing::kError) {
  ColumnOptions options = column(name, ColumnUse::kNumber);
  options.normalise = normalise;
  options.missing = missing;
  return options;
}

inline ColumnOptions label(const std::string& name) {
  return column(name, ColumnUse::kLabel);
}

class Table : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!detail::find_plugin(arrow_plugin::kFile)) GTEST_SKIP() << "built with TROIKA_ARROW=0";
    options_.files = {folder_ / "*"};
    options_.held_out_fraction = 0;
  }
  void write(const std::string& name, const std::string& text) { write_file(folder_ / name, text); }

  std::unique_ptr<TableDataset> open(const SampleSpec& sample, std::uint64_t seed = 1) {
    return std::make_unique<TableDataset>(options_, sample, seed);
  }
  std::string error(const SampleSpec& sample) {
    return message_of([&] { (void)rows_of(*open(sample)); });
  }

  // The rows of one pass, features then targets, sorted.
  static std::vector<Row> rows_of(const Dataset& dataset, Split split = Split::kTrain) {
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < dataset.samples(split); ++i) {
      const Microbatch batch = dataset.microbatch(split, std::vector{dataset.at(split, i)}, 1);
      const at::Tensor row = at::cat(
          {batch.tensors[0].flatten().to(at::kDouble), batch.tensors[1].flatten().to(at::kDouble)});
      rows.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel());
    }
    std::ranges::sort(rows);
    return rows;
  }

  TemporaryFolder folder_;
  TableOptions options_;
};

}  // namespace troika
