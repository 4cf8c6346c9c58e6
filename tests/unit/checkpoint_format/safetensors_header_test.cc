#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/checkpoint/safetensors_header.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace troika {
namespace {

using testing::HasSubstr;

// A file with this header and `data_bytes` of data.
std::string file_of(const std::string& json, std::size_t data_bytes) {
  ByteWriter writer;
  writer.write<std::uint64_t>(json.size());
  writer.write_text(json);
  writer.write_text(std::string(data_bytes, 'd'));
  return std::string(text_of(writer.bytes()));
}

std::string error_of(const std::string& file) {
  try {
    static_cast<void>(parse_safetensors(bytes_of(file), "m.safetensors"));
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

// One tensor 'w' with these fields.
std::string tensor(const std::string& fields) {
  return R"({"w":{)" + fields + "}}";
}
std::string tensor(const std::string& type, const std::string& shape, const std::string& offsets) {
  return tensor(R"("dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets);
}

TEST(SafetensorsHeader, ReadsAnExample) {
  const std::string file = file_of(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[],"data_offsets":[12,20]},)"
      R"("a":{"shape":[2,3],"data_offsets":[0,12],"dtype":"F16"},)"
      R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[12,12]}}   )",
      20);
  const SafetensorsHeader header = parse_safetensors(bytes_of(file), "f");
  EXPECT_EQ(header.metadata, (Metadata{{"format", "pt"}}));
  EXPECT_EQ(header.data_begin, file.size() - 20);
  EXPECT_THAT(header.entries,
              testing::ElementsAre(TensorEntry{"a", DataType::kF16, {2, 3}, 0, 12},
                                   TensorEntry{"none", DataType::kF32, {0, 7}, 12, 12},
                                   TensorEntry{"b", DataType::kI64, {}, 12, 20}));
}

TEST(SafetensorsHeader, AcceptsAFileOfNothing) {
  EXPECT_EQ(error_of(file_of("{}", 0)), "accepted");
  EXPECT_EQ(error_of(file_of("{}      ", 0)), "accepted");
}

struct Hostile {
  const char* name;
  std::string file;
  std::string message;
};

std::string with_length(std::uint64_t length, const std::string& rest) {
  ByteWriter writer;
  writer.write(length);
  return std::string(text_of(writer.bytes())) + rest;
}

std::vector<Hostile> hostile_framings() {
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  return {
      {"empty", "", "it is empty"},
      {"seven_bytes", "1234567", "it has only 7 bytes"},
      {"length_only", with_length(2, ""), "truncated: the header needs 2 bytes, 0 are left"},
      {"length_past_end", with_length(100, "{}"), "needs 100 bytes, 2 are left"},
      {"length_over_limit", with_length(100'000'001, "{}"), "beyond the limit of 100000000"},
      {"length_overflows", with_length(kMax, "{}"), "beyond the limit"},
      {"length_almost_overflows", with_length(kMax - 7, "{}"), "beyond the limit"},
      {"torch_save", std::string("PK\x03\x04\0\0\x08\x08\0\0\0\0", 12) + "archive/data.pkl",
       "not a safetensors file: it is what torch.save() or torch.jit.save() writes"},
      {"early_torch_save",
       "\x80\x02\x8a\nl\xfc\x9c"
       "F\xf9 j\xa8P\x19",
       "it is what torch.save() of early releases writes"},
      {"large_file_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a",
       "it is a pointer of Git LFS, and not the file itself"},
      {"page", "<!DOCTYPE html><html>Entry not found", "it is a page of the web"},
      {"gguf", std::string("GGUF\x03\0\0\0\x10\0\0\0", 12), "it is GGUF"},
      {"no_header", with_length(0, ""), "does not begin with '{'"},
      {"trailing_bytes", file_of("{}", 5), "the last 5 bytes belong to no tensor"},
  };
}

std::vector<Hostile> hostile_texts() {
  const std::string deep(1'000'000, '[');
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += R"({"a":)";
  return {
      {"not_json", file_of("{nonsense", 0), "not valid JSON near byte 10"},
      {"cut_off", file_of(R"({"w":{"dtype":"F32")", 0), "not valid JSON"},
      {"two_values", file_of("{}{}", 0), "not valid JSON"},
      {"zero_byte", file_of(std::string("{}\0 ", 4), 0), "not valid JSON near byte 10"},
      {"byte_order_mark", file_of("\xEF\xBB\xBF{}", 0), "does not begin with '{'"},
      {"leading_space", file_of(" {}", 0), "does not begin with '{'"},
      {"array", file_of("[]", 0), "does not begin with '{'"},
      {"comment", file_of("{/**/}", 0), "not valid JSON"},
      {"not_utf8", file_of("{\"\xFF\":{}}", 0), "not valid JSON"},
      {"number_too_big", file_of(tensor("U8", "[1e999]", "[0,1]"), 1), "not valid JSON"},
      {"deep_arrays", file_of(R"({"w":)" + deep, 0), "tensor 'w': expected an object"},
      {"deep_shape", file_of(R"({"w":{"shape":)" + deep, 0), "expected whole numbers"},
      {"deep_objects", file_of(R"({"w":)" + objects, 0), "tensor 'w': unknown field 'a'"},
      {"control_characters", file_of("{\"a\\n\\u001b\":1}", 0), R"(tensor 'a\n\x1b': expected)"},
  };
}

std::vector<Hostile> hostile_structures() {
  const std::string whole = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";
  const std::string two = R"({"w":{)" + whole + R"(},"w":{)" + whole + "}}";
  return {
      {"tensor_is_number", file_of(R"({"w":3})", 0), "expected an object, found a number"},
      {"tensor_is_null", file_of(R"({"w":null})", 0), "expected an object, found null"},
      {"tensor_is_text", file_of(R"({"w":"x"})", 0), "expected an object, found a string"},
      {"twice", file_of(two, 1), "tensor 'w': named twice"},
      {"field_twice", file_of(tensor(whole + R"(,"dtype":"U8")"), 1), "field 'dtype' twice"},
      {"unknown_field", file_of(tensor(whole + R"(,"strides":[1])"), 1), "unknown field 'strides'"},
      {"no_dtype", file_of(tensor(R"("shape":[1],"data_offsets":[0,1])"), 1), "'dtype' is missing"},
      {"no_shape", file_of(tensor(R"("dtype":"U8","data_offsets":[0,1])"), 1),
       "'shape' is missing"},
      {"no_offsets", file_of(tensor(R"("dtype":"U8","shape":[1])"), 1),
       "'data_offsets' is missing"},
      {"nothing", file_of(tensor(""), 0), "field 'dtype' is missing"},
      {"dtype_is_number", file_of(tensor(R"("dtype":7)"), 0), "'dtype': unexpected a number"},
      {"dtype_is_array", file_of(tensor(R"("dtype":["U8"])"), 0), "'dtype': unexpected an array"},
      {"shape_is_object", file_of(tensor(R"("shape":{})"), 0), "'shape': unexpected an object"},
      {"shape_is_text", file_of(tensor(R"("shape":"1")"), 0), "'shape': unexpected a string"},
      {"metadata_is_array", file_of(R"({"__metadata__":[]})", 0), "found an array"},
      {"metadata_number", file_of(R"({"__metadata__":{"k":1}})", 0), "key 'k': expected a string"},
      {"metadata_nested", file_of(R"({"__metadata__":{"k":{}}})", 0), "key 'k': expected a string"},
      {"metadata_key_twice", file_of(R"({"__metadata__":{"k":"","k":""}})", 0), "key 'k' twice"},
      {"metadata_twice", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "named twice"},
      {"lower_case_dtype", file_of(tensor("f32", "[1]", "[0,4]"), 4), "unknown dtype 'f32'"},
      {"unknown_dtype", file_of(tensor("F8_E4M3", "[1]", "[0,1]"), 1), "unknown dtype 'F8_E4M3'"},
  };
}

std::vector<Hostile> hostile_numbers() {
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  return {
      {"negative_dim", file_of(tensor("U8", "[-1]", "[0,1]"), 1), "found a negative number"},
      {"minus_zero", file_of(tensor("U8", "[-0]", "[0,0]"), 0), "found a negative number"},
      {"fraction", file_of(tensor("U8", "[1.0]", "[0,1]"), 1), "not whole or too large"},
      {"exponent", file_of(tensor("U8", "[1e0]", "[0,1]"), 1), "not whole or too large"},
      {"text_dim", file_of(tensor("U8", R"(["1"])", "[0,1]"), 1), "found a string"},
      {"null_dim", file_of(tensor("U8", "[null]", "[0,1]"), 1), "found null"},
      {"true_dim", file_of(tensor("U8", "[true]", "[0,1]"), 1), "found true or false"},
      {"nested_dim", file_of(tensor("U8", "[[1]]", "[0,1]"), 1), "found an array"},
      {"past_int64", file_of(tensor("U8", "[9223372036854775808]", "[0,1]"), 1), "is too large"},
      {"past_uint64", file_of(tensor("U8", "[18446744073709551616]", "[0,1]"), 1), "too large"},
      {"product_overflows", file_of(tensor("U8", "[4294967296,4294967296]", "[0,0]"), 0),
       "U8 [4294967296, 4294967296] has more bytes than 64 bits can count"},
      {"size_overflows", file_of(tensor("F64", "[2305843009213693952]", "[0,0]"), 0),
       "more bytes than 64 bits"},
      {"overflow_then_zero", file_of(tensor("F64", "[9223372036854775807,9,0]", "[0,0]"), 0),
       "more bytes than 64 bits"},
      {"too_many_dims", file_of(tensor("U8", "[" + many + "]", "[0,1]"), 1), "more than 64 dim"},
      {"one_offset", file_of(tensor("U8", "[1]", "[0]"), 1), "must hold two numbers"},
      {"three_offsets", file_of(tensor("U8", "[1]", "[0,1,2]"), 1), "must hold two numbers"},
      {"negative_offset", file_of(tensor("U8", "[1]", "[-1,0]"), 1), "found a negative number"},
      {"offset_past_uint64", file_of(tensor("U8", "[1]", "[0,18446744073709551616]"), 1),
       "not whole or too large"},
  };
}

std::string pair(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
}

std::vector<Hostile> hostile_places() {
  return {
      {"backwards", file_of(tensor("U8", "[1]", "[1,0]"), 1), "[1, 0) run backwards"},
      {"outside", file_of(tensor("U8", "[8]", "[0,8]"), 7), "[0, 8) reach beyond the 7 bytes"},
      {"far_outside",
       file_of(tensor("U8", "[1]", "[18446744073709551614,18446744073709551615]"), 1),
       "reach beyond"},
      {"too_few", file_of(tensor("F32", "[2]", "[0,4]"), 4), "F32 [2] needs 8 bytes"},
      {"too_many", file_of(tensor("F32", "[]", "[0,8]"), 8), "F32 [] needs 4 bytes"},
      {"zero_dim_with_bytes", file_of(tensor("F32", "[0]", "[0,4]"), 4), "F32 [0] needs 0 bytes"},
      {"same_place", file_of(pair("[0,4]", "[0,4]"), 4), "tensor 'b': its data overlap"},
      {"overlap", file_of(pair("[0,4]", "[3,7]"), 7), "overlap another tensor's at byte 3"},
      {"hole", file_of(pair("[0,4]", "[5,9]"), 9), "tensor 'b': bytes 4 to 5 before it"},
      {"hole_first", file_of(tensor("U8", "[1]", "[1,2]"), 2), "bytes 0 to 1 before it"},
      {"rest", file_of(pair("[0,4]", "[4,8]"), 9), "the last 1 bytes belong to no tensor"},
      {"empty_inside_another",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("z":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
               4),
       "tensor 'z': its data overlap"},
  };
}

void expect_refused(const std::vector<Hostile>& files) {
  for (const Hostile& hostile : files) {
    SCOPED_TRACE(hostile.name);
    const std::string error = error_of(hostile.file);
    EXPECT_THAT(error, HasSubstr(hostile.message));
    EXPECT_THAT(error, testing::StartsWith("m.safetensors: "));
    EXPECT_EQ(error.find('\n'), std::string::npos);
    EXPECT_LT(error.size(), 400U);
  }
}

TEST(HostileSafetensors, FramingIsRefused) {
  expect_refused(hostile_framings());
}
TEST(HostileSafetensors, TextIsRefused) {
  expect_refused(hostile_texts());
}
TEST(HostileSafetensors, StructureIsRefused) {
  expect_refused(hostile_structures());
}
TEST(HostileSafetensors, NumbersAreRefused) {
  expect_refused(hostile_numbers());
}
TEST(HostileSafetensors, PlacesAreRefused) {
  expect_refused(hostile_places());
}

TEST(SafetensorsHeader, RefusesEveryTruncation) {
  const std::string file = file_of(pair("[0,4]", "[4,8]"), 8);
  ASSERT_EQ(error_of(file), "accepted");
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(error_of(file.substr(0, size)), "accepted") << size;
  }
}

// Entries with random types, shapes and awkward names.
std::vector<TensorEntry> random_entries(std::uint64_t trial) {
  const RandomStream draws(stream_key(11, "entries"), trial);
  std::vector<TensorEntry> entries(draws.below(0, 12));
  std::uint64_t draw = 1;
  for (TensorEntry& entry : entries) {
    entry.name = "tensor \"" + std::to_string(draw) + "\"\\\n\xC3\xBC";
    entry.type = kDataTypes[draws.below(draw++, kDataTypes.size())];
    entry.shape.resize(draws.below(draw++, 5));
    for (std::int64_t& dim : entry.shape) dim = static_cast<std::int64_t>(draws.below(draw++, 4));
  }
  return entries;
}

TEST(SafetensorsHeader, ReadsBackWhatItWrites) {
  for (std::uint64_t trial = 0; trial < 300; ++trial) {
    std::vector<TensorEntry> entries = lay_out_safetensors(random_entries(trial));
    const Metadata metadata{{"trial", std::to_string(trial)}, {"\"\n", "\x7F\xE2\x82\xAC"}};
    std::string file = format_safetensors_header(entries, metadata);
    EXPECT_EQ(file.size() % 8, 0U);
    for (const TensorEntry& entry : entries) {
      EXPECT_EQ(entry.begin % size_of(entry.type), 0U) << "unaligned " << entry.name;
    }
    file.append(entries.empty() ? 0 : entries.back().end, 'x');

    const SafetensorsHeader header = parse_safetensors(bytes_of(file), "f");
    EXPECT_EQ(header.metadata, metadata);
    const auto by_name = [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; };
    auto read = header.entries;  // tensors of no bytes share places, so their order may differ
    std::sort(read.begin(), read.end(), by_name);
    std::sort(entries.begin(), entries.end(), by_name);
    EXPECT_EQ(read, entries);
  }
}

TEST(SafetensorsHeader, DoesNotDependOnTheOrderGiven) {
  std::vector<TensorEntry> entries{{.name = "b", .type = DataType::kU8, .shape = {3}},
                                   {.name = "a", .type = DataType::kF32, .shape = {2}},
                                   {.name = "c", .type = DataType::kI64, .shape = {}}};
  const std::string one = format_safetensors_header(lay_out_safetensors(entries), {});
  std::reverse(entries.begin(), entries.end());
  EXPECT_EQ(format_safetensors_header(lay_out_safetensors(entries), {}), one);
  EXPECT_THAT(one, HasSubstr(R"({"c":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"a":)"));
}

TEST(SafetensorsHeader, RefusesToWriteWhatItWouldNotRead) {
  const auto write = [](std::vector<TensorEntry> entries, const Metadata& metadata = {}) {
    static_cast<void>(format_safetensors_header(lay_out_safetensors(std::move(entries)), metadata));
  };
  EXPECT_THROW(write({{.name = "a"}, {.name = "a"}}), UsageError);
  EXPECT_THROW(write({{.name = "__metadata__"}}), UsageError);
  EXPECT_THROW(write({{.name = "\xFF"}}), UsageError);
  EXPECT_THROW(write({}, {{"k", "\xFF"}}), UsageError);
  EXPECT_THROW(write({{.name = "a", .shape = {-1}}}), UsageError);
  EXPECT_THROW(write({{.name = "a", .shape = {1LL << 62, 4}}}), UsageError);
  EXPECT_THROW(write({{.name = "a", .shape = {1LL << 61}}, {.name = "b", .shape = {1LL << 61}}}),
               UsageError);
  EXPECT_THROW(write({{.name = "a", .shape = std::vector<std::int64_t>(65, 1)}}), UsageError);
  EXPECT_NO_THROW(write({{.name = "a", .shape = std::vector<std::int64_t>(64, 1)}}));
}

TEST(DataType, NamesAndSizesAgree) {
  for (const DataType type : kDataTypes) EXPECT_EQ(data_type_of(name_of(type)), type);
  EXPECT_EQ(name_of(DataType::kBF16), "BF16");
  EXPECT_EQ(size_of(DataType::kBF16), 2U);
  EXPECT_EQ(size_of(DataType::kF64), 8U);
  EXPECT_EQ(size_of(DataType::kBool), 1U);
  EXPECT_EQ(data_type_of("U16"), std::nullopt);
}

}  // namespace
}  // namespace troika
