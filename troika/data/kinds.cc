// The kinds of data that there are: a new one is a line here, and its folder.
#include <troika/base/text.h>
#include <troika/data/kind.h>
#include <troika/data/sources/chat/chat.h>
#include <troika/data/sources/images/images.h>
#include <troika/data/sources/random/random.h>
#include <troika/data/sources/table/table.h>
#include <troika/data/sources/text/text.h>
#include <troika/data/sources/tokens/tokens.h>

namespace troika {

std::span<const DataKind* const> DataKind::all() {
  static const std::array kAll = {&text_kind(),  &chat_kind(),   &tokens_kind(),
                                  &table_kind(), &images_kind(), &random_kind()};
  return kAll;
}

const DataKind& DataKind::default_kind() {
  return text_kind();
}

void DataKind::check_model(const Options&, const SampleSpec&, std::string_view,
                           const Origins&) const {}

void DataKind::check_ready(const Options&, const Origins&) const {}

std::vector<std::string> DataKind::warnings(const Options&, const Origins&) const {
  return {};
}

bool DataKind::gives(const Options&, const TensorSpec&) const {
  return false;
}

std::optional<SampleSpec> DataKind::describe(const Options&, const SampleSpec&,
                                             const Origins&) const {
  return std::nullopt;
}

std::optional<std::string> DataKind::tokenizer(const Options&) const {
  return std::nullopt;
}

std::unique_ptr<Dataset> DataKind::open_on_host(const Options& options, const SampleSpec& sample,
                                                std::uint64_t seed, HostWork&) const {
  return open(options, sample, seed);
}

std::unique_ptr<Dataset> DataKind::open_for_model(const Options& options, const SampleSpec& sample,
                                                  std::uint64_t seed, const TrainedData&) const {
  return open(options, sample, seed);
}

std::optional<Options> DataKind::on_test_side(const Options&) const {
  return std::nullopt;
}

Options DataKind::on_files(const Options&, const std::vector<std::string>&,
                           std::span<const std::string>) const {
  throw UsageError("data.kind = " + quote(name()) + " takes no other files",
                   "--data is for text, tables and images; --set changes other keys of [data]");
}

std::unique_ptr<Dataset> open_dataset(const DataOptions& data, const SampleSpec& sample,
                                      std::uint64_t seed) {
  return data.kind().open(data.options(), sample, seed);
}

std::unique_ptr<Dataset> open_dataset(const DataOptions& data, const SampleSpec& sample,
                                      std::uint64_t seed, HostWork& host) {
  return data.kind().open_on_host(data.options(), sample, seed, host);
}

}  // namespace troika
