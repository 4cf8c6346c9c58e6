#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/checkpoint/tensors.h>

#include <cmath>
#include <limits>
#include <string>

namespace troika {
namespace {

using testing::HasSubstr;

constexpr std::array kTypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong,
                            at::kInt,    at::kShort, at::kChar,     at::kByte, at::kBool};

// The same type, shape and bytes: at::equal would call two NaNs different.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  return left.nbytes() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

at::Tensor random_tensor(std::uint64_t trial) {
  const RandomStream draws(stream_key(3, "tensor"), trial);
  std::vector<std::int64_t> shape(draws.below(0, 4));
  std::uint64_t draw = 1;
  for (std::int64_t& dim : shape) dim = static_cast<std::int64_t>(draws.below(draw++, 6));
  at::Tensor values = at::empty(shape, at::kDouble);
  double* at_value = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) at_value[i] = 30 * draws.normal(draw++);
  at::Tensor typed = values.to(kTypes[trial % kTypes.size()]);
  // Every other one is not contiguous.
  return trial % 2 == 1 && typed.dim() >= 2 ? typed.transpose(0, 1) : typed;
}

TEST(Tensors, ComeBackBitByBit) {
  TemporaryFolder folder;
  for (std::uint64_t file = 0; file < 20; ++file) {
    std::vector<NamedTensor> tensors;
    for (std::uint64_t i = 0; i < 20; ++i) {
      const std::string digits = std::to_string(100 + (i * 7) % 20);
      tensors.push_back({"layer." + digits, random_tensor(20 * file + i)});
    }
    save_tensors(folder / "m", tensors);
    const std::vector<NamedTensor> loaded = load_tensors(folder / "m");
    ASSERT_EQ(loaded.size(), tensors.size());
    std::sort(tensors.begin(), tensors.end(),
              [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      EXPECT_EQ(loaded[i].name, tensors[i].name);
      EXPECT_TRUE(same_bits(loaded[i].tensor, tensors[i].tensor)) << loaded[i].name;
      EXPECT_TRUE(loaded[i].tensor.is_contiguous());
    }
  }
}

TEST(Tensors, KeepNanInfinityAndNegativeZero) {
  TemporaryFolder folder;
  const at::Tensor special = at::empty({4}, at::kFloat);
  float* values = special.mutable_data_ptr<float>();
  values[0] = std::nanf("5");
  values[1] = -std::numeric_limits<float>::infinity();
  values[2] = -0.0F;
  values[3] = std::numeric_limits<float>::denorm_min();
  save_tensors(folder / "m", std::vector<NamedTensor>{{"special", special}});
  EXPECT_TRUE(same_bits(load_tensors(folder / "m")[0].tensor, special));
}

TEST(Tensors, AreOwnedAndFreeOfAutograd) {
  TemporaryFolder folder;
  const at::Tensor leaf = at::ones({2, 2}, at::kFloat).requires_grad_(true);
  const at::Tensor view = leaf.detach().select(1, 1);
  save_tensors(folder / "m", std::vector<NamedTensor>{{"leaf", leaf}, {"view", view}});
  auto loaded = load_tensors(folder / "m");
  std::filesystem::remove(folder / "m");
  EXPECT_FALSE(loaded[0].tensor.requires_grad());
  loaded[0].tensor.mul_(3);  // not read-only
  EXPECT_EQ(loaded[0].tensor.sum().item<float>(), 12);
  EXPECT_TRUE(same_bits(loaded[1].tensor, view));
  EXPECT_TRUE(leaf.requires_grad());
}

TEST(Tensors, OneCanBeLoadedAlone) {
  TemporaryFolder folder;
  save_tensors(folder / "m",
               std::vector<NamedTensor>{{"a", at::arange(3)}, {"b", at::arange(5, at::kFloat)}},
               {{"step", "7"}});
  const SafetensorsFile file(folder / "m");
  EXPECT_EQ(file.metadata().at("step"), "7");
  EXPECT_TRUE(same_bits(load_tensor(file, file.at("b")), at::arange(5, at::kFloat)));
}

TEST(Tensors, TheSameTensorsGiveTheSameFile) {
  TemporaryFolder folder;
  std::vector<NamedTensor> tensors{{"a", at::arange(3)}, {"b", at::arange(5, at::kFloat)}};
  save_tensors(folder / "one", tensors, {{"k", "v"}, {"a", "b"}});
  std::swap(tensors[0], tensors[1]);
  save_tensors(folder / "two", tensors, {{"a", "b"}, {"k", "v"}});
  EXPECT_EQ(read_file(folder / "one", 10000), read_file(folder / "two", 10000));
}

TEST(Tensors, RefusesWhatHasNoPlaceInAFile) {
  TemporaryFolder folder;
  const auto error_of = [&](std::vector<NamedTensor> tensors) -> std::string {
    try {
      save_tensors(folder / "m", tensors);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no UsageError";
  };
  EXPECT_EQ(error_of({{"c", at::ones({1}, at::kComplexFloat)}}),
            "tensor 'c' cannot be saved: its type is ComplexFloat");
  EXPECT_EQ(error_of({{"u", at::Tensor()}}), "tensor 'u' cannot be saved: it is undefined");
  EXPECT_EQ(error_of({{"m", at::empty({2}, at::TensorOptions().device(at::kMeta))}}),
            "tensor 'm' cannot be saved: it has no dense values");
  EXPECT_THAT(error_of({{"s", at::ones({2, 2}).to_sparse()}}), HasSubstr("no dense values"));
  EXPECT_THAT(error_of({{"a", at::ones({1})}, {"a", at::ones({1})}}), HasSubstr("named twice"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Tensors, RefusesABoolThatIsNone) {
  TemporaryFolder folder;
  const std::string byte(1, '\2');
  write_safetensors(folder / "m",
                    std::vector<TensorBytes>{{"mask", DataType::kBool, {1}, bytes_of(byte)}});
  try {
    static_cast<void>(load_tensors(folder / "m"));
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor 'mask': a BOOL is neither 0 nor 1"));
  }
}

}  // namespace
}  // namespace troika
