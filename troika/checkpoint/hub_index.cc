#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/checkpoint/hub_index.h>
#include <troika/checkpoint/plain_name.h>

#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace troika {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::uint64_t bytes_of(const TensorEntry& tensor) {
  const auto bytes = tensor_bytes(tensor.type, tensor.shape);
  check(bytes.has_value(), "a tensor of an impossible shape: " + tensor.name);
  return *bytes;
}

std::string file_name(std::size_t file, std::size_t files) {
  if (files == 1) return kHubModelFile;
  constexpr int kDigits = 5;
  std::ostringstream name;
  name << std::setfill('0') << "model-" << std::setw(kDigits) << file + 1 << "-of-"
       << std::setw(kDigits) << files << ".safetensors";
  return name.str();
}

}  // namespace

std::vector<HubFile> cut_into_hub_files(const std::vector<TensorEntry>& tensors,
                                        std::uint64_t max_bytes) {
  std::vector<HubFile> files(1);
  std::uint64_t bytes = 0;
  for (const TensorEntry& tensor : tensors) {
    const std::uint64_t more = bytes_of(tensor);
    if (!files.back().tensors.empty() && (bytes > max_bytes || more > max_bytes - bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().tensors.push_back(tensor);
    bytes += more;
  }
  for (std::size_t i = 0; i < files.size(); ++i) files[i].name = file_name(i, files.size());
  return files;
}

std::string format_hub_index(const std::vector<HubFile>& files) {
  constexpr int kIndent = 2;
  std::uint64_t total = 0;
  OrderedJson map = OrderedJson::object();
  for (const HubFile& file : files) {
    for (const TensorEntry& tensor : file.tensors) {
      total += bytes_of(tensor);
      map[tensor.name] = file.name;
    }
  }
  return OrderedJson{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(kIndent) +
         "\n";
}

std::map<std::string, std::string> parse_hub_index(std::string_view text,
                                                   const std::string& source) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    throw DataError(source + " is no index: it has no weight_map");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get<std::string>())) {
      throw DataError(source + ": tensor " + quote(tensor) + " is in " + quote(file.dump()) +
                      ", which is no file beside it");
    }
    files[tensor] = file.get<std::string>();
  }
  return files;
}

}  // namespace troika
