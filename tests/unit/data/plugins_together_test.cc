// Plug-ins whose libraries have parts in common work in one process.
#include <troika/base/file.h>
#include <troika/data/sources/table/arrow_library.h>
#include <troika/data/tokenizer.h>
#include <troika/storage/first_line_into.h>
#include <unit/data/table_support.h>

namespace troika {
namespace {

// LibTorch, SentencePiece, Arrow and gRPC each bring libraries of the same names: protobuf, abseil.
class PluginsTogether : public Table {
 protected:
  static void differentiate() {
    const at::Tensor x = at::arange(6, at::kDouble).view({2, 3}).requires_grad_();
    (x.matmul(x.t()).sum() + at::softmax(x, 1).sum()).backward();
    EXPECT_TRUE(at::allclose(x.grad(), 2 * x.detach().sum(0).expand({2, 3})));
  }

  static void tokenise() {
    std::vector<std::string> lines(50, "three horses abreast, as in three horses");
    const auto next_line = [&]() -> std::optional<std::string> {
      if (lines.empty()) return std::nullopt;
      std::string line = lines.back();
      lines.pop_back();
      return line;
    };
    const auto tokenizer = load_sentencepiece(train_sentencepiece(next_line, 300), "a test");
    const std::vector<std::int32_t> ids = tokenizer->encode("horses abreast");
    EXPECT_LT(ids.size(), 14U);
    EXPECT_EQ(tokenizer->decode(std::vector<std::int64_t>(ids.begin(), ids.end())),
              "horses abreast");
  }

  // Writes a Parquet file and trains on what it holds.
  void read_table() {
    AtomicFile file(folder_ / "a.parquet");
    const auto take = [&](std::span<const std::byte> bytes) {
      file.write(bytes);
      return true;
    };
    const std::vector<arrow_plugin::Column> columns = {
        {"a", arrow_plugin::ValueType::kNumber, {}, 1},
        {"y", arrow_plugin::ValueType::kInteger, {}, 1}};
    std::string reason;
    const auto writer = arrow_library().create(columns, take, first_line_into(reason));
    ASSERT_NE(writer, nullptr) << reason;
    const std::vector<double> numbers = {0.5, 1.5};
    const std::vector<std::int64_t> classes_of_rows = {1, 0};
    std::vector<arrow_plugin::Values> rows(2);
    rows[0].type = arrow_plugin::ValueType::kNumber;
    rows[0].numbers = numbers;
    rows[1].type = arrow_plugin::ValueType::kInteger;
    rows[1].integers = classes_of_rows;
    for (arrow_plugin::Values& each : rows) each.rows = 2;
    ASSERT_TRUE(writer->write(rows, first_line_into(reason))) << reason;
    ASSERT_TRUE(writer->close(first_line_into(reason))) << reason;
    file.commit();
    options_.columns = {number("a"), label("y")};
    EXPECT_THAT(rows_of(*open(classes(1, 2))), testing::ElementsAre(Row{0.5, 1}, Row{1.5, 0}));
  }

  static void call_flight() {
    const auto probe = reinterpret_cast<const char* (*)()>(detail::load_plugin(
        TROIKA_FLIGHT_PROBE, "troika_flight_probe", detail::PluginScope::kLocal));
    EXPECT_STREQ(probe(), "");
  }
};

TEST_F(PluginsTogether, WorkInOneProcess) {
  const bool has_flight = !std::string_view(TROIKA_FLIGHT_PROBE).empty();
  for (int round = 0; round < 2; ++round) {
    differentiate();
    tokenise();
    read_table();
    if (has_flight) call_flight();
  }
  if (!has_flight) GTEST_SKIP() << "Flight is left out: its library is not there";
}

TEST_F(Table, SizesTheThreadsOfArrowAsThoseOfATen) {
  write("a.csv", "a,y\n1,0\n");
  options_.columns = {number("a"), label("y")};
  const int before = at::get_num_threads();
  for (const int threads : {3, 1}) {
    at::set_num_threads(threads);
    (void)open(classes(1, 1));
    EXPECT_EQ(arrow_library().threads().decoding, threads);
    EXPECT_EQ(arrow_library().threads().reading, std::max(2, threads));
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace troika
