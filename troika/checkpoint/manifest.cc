#include <troika/base/error.h>
#include <troika/base/slice_runs.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/checkpoint/manifest.h>
#include <troika/checkpoint/plain_name.h>
#include <troika/checkpoint/sha256.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace troika {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "troika checkpoint";
constexpr std::int64_t kVersion = 2;       // 1 had no digest
constexpr const char* kDigest = "sha256";  // of the text without it
constexpr std::size_t kDigestDigits = 64;
// Pieces of a tensor that lie together: so many cost a quarter of a gigabyte to compare.
constexpr std::int64_t kMostRuns = std::int64_t{1} << 24;

// Reads values of the one manifest, and names it in errors.
class ManifestReader {
 public:
  explicit ManifestReader(const std::string& source) : source_(source) {}

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(source_ + ": " + problem, "the checkpoint before it may be whole");
  }

  [[nodiscard]] Json parse(std::string_view text) const {
    Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) fail("it is no JSON (truncated?)");
    return json;
  }

  [[nodiscard]] const Json& member(const Json& object, const char* name) const {
    if (!object.is_object())
      fail("something other than an object holds '" + std::string(name) + "'");
    const auto found = object.find(name);
    if (found == object.end()) fail("'" + std::string(name) + "' is missing");
    return *found;
  }
  [[nodiscard]] std::string text(const Json& object, const char* name) const {
    const Json& value = member(object, name);
    if (!value.is_string()) fail("'" + std::string(name) + "' is no string");
    return value.get<std::string>();
  }
  [[nodiscard]] std::int64_t count(const Json& value, const std::string& what) const {
    if (!value.is_number_integer()) fail(what + " is no whole number");
    if (value.is_number_unsigned() &&
        value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      fail(what + " is too large");
    }
    const auto number = value.get<std::int64_t>();
    if (number < 0) fail(what + " is negative");
    return number;
  }
  [[nodiscard]] std::int64_t count_in(const Json& object, const char* name) const {
    return count(member(object, name), "'" + std::string(name) + "'");
  }
  [[nodiscard]] const Json& list(const Json& object, const char* name) const {
    const Json& value = member(object, name);
    if (!value.is_array()) fail("'" + std::string(name) + "' is no list");
    return value;
  }
  [[nodiscard]] const Json& table(const Json& object, const char* name) const {
    const Json& value = member(object, name);
    if (!value.is_object()) fail("'" + std::string(name) + "' is no object");
    return value;
  }

 private:
  const std::string& source_;
};

Json json_of(const ManifestTensor& tensor) {
  return {{"dtype", name_of(tensor.type)}, {"shape", tensor.shape}};
}

Json json_of(const std::map<std::string, ManifestTensor>& tensors) {
  Json json = Json::object();
  for (const auto& [name, tensor] : tensors) json[name] = json_of(tensor);
  return json;
}

Json json_of(const ManifestShard& shard) {
  Json parts = Json::array();
  for (const ManifestPart& part : shard.parts) {
    Json json = Json::object();
    json["tensor"] = part.tensor;
    json["dim"] = part.dim;
    json["slice"] = Json::array({part.slice_begin, part.slice_end});
    json["elements"] = Json::array({part.begin, part.count});
    parts.push_back(std::move(json));
  }
  return {{"file", shard.file}, {"bytes", shard.bytes}, {"sha256", shard.sha256}, {"parts", parts}};
}

std::map<std::string, ManifestTensor> tensors_of(const ManifestReader& in, const Json& json) {
  std::map<std::string, ManifestTensor> tensors;
  for (const auto& [name, value] : json.items()) {
    ManifestTensor tensor;
    const std::string type = in.text(value, "dtype");
    const auto known = data_type_of(type);
    if (!known) in.fail("tensor " + quote(name) + " has an unknown dtype " + quote(type));
    tensor.type = *known;
    for (const Json& dim : in.list(value, "shape")) {
      tensor.shape.push_back(in.count(dim, "a dimension of tensor " + quote(name)));
    }
    if (!tensor_bytes(tensor.type, tensor.shape)) {
      in.fail("tensor " + quote(name) + " has more bytes than 64 bits can count");
    }
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

std::pair<std::int64_t, std::int64_t> pair_of(const ManifestReader& in, const Json& object,
                                              const char* name) {
  const Json& list = in.list(object, name);
  if (list.size() != 2) in.fail("'" + std::string(name) + "' has not two numbers");
  return {in.count(list[0], name), in.count(list[1], name)};
}

ManifestShard shard_of(const ManifestReader& in, const Json& json) {
  ManifestShard shard;
  shard.file = in.text(json, "file");
  if (!is_plain_file_name(shard.file))
    in.fail(quote(shard.file) + " is no name of a file beside it");
  shard.bytes = static_cast<std::uint64_t>(in.count_in(json, "bytes"));
  shard.sha256 = in.text(json, "sha256");
  if (shard.sha256.size() != kDigestDigits ||
      shard.sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
    in.fail("the sha256 of " + quote(shard.file) + " has not 64 hexadecimal digits");
  }
  for (const Json& each : in.list(json, "parts")) {
    ManifestPart part;
    part.tensor = in.text(each, "tensor");
    part.dim = static_cast<int>(std::min<std::int64_t>(in.count_in(each, "dim"), 1 << 10));
    std::tie(part.slice_begin, part.slice_end) = pair_of(in, each, "slice");
    std::tie(part.begin, part.count) = pair_of(in, each, "elements");
    shard.parts.push_back(std::move(part));
  }
  return shard;
}

std::int64_t elements_of(const ManifestTensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

// JSON has no numbers that are not finite: they are text.
Json json_of(double number) {
  if (std::isfinite(number)) return number;
  if (std::isnan(number)) return "nan";
  return number > 0 ? "inf" : "-inf";
}

std::optional<double> nonfinite_of(const Json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double each : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    if (value == json_of(each)) return each;
  }
  return std::nullopt;
}

// Checks that the part lies inside the tensor.
void check_part(const ManifestReader& in, const ManifestPart& part, const ManifestTensor& tensor) {
  const std::string name = "a part of tensor " + quote(part.tensor);
  const auto dims = std::max<std::int64_t>(1, std::ssize(tensor.shape));
  if (part.dim >= dims) in.fail(name + " is cut along dimension " + std::to_string(part.dim));
  const std::int64_t size =
      tensor.shape.empty() ? 1 : tensor.shape[static_cast<std::size_t>(part.dim)];
  if (part.slice_begin > part.slice_end || part.slice_end > size) {
    in.fail(name + " has a slice beyond its dimension of " + std::to_string(size));
  }
  const std::int64_t held =
      size == 0 ? 0 : elements_of(tensor) / size * (part.slice_end - part.slice_begin);
  if (part.begin > held || part.count > held - part.begin) {
    in.fail(name + " has elements beyond its slice of " + std::to_string(held));
  }
}

struct Run {
  std::int64_t begin, end;
};

// Checks that every element of the tensor is in exactly one of the parts.
void check_coverage(const ManifestReader& in, const std::string& name, const ManifestTensor& tensor,
                    std::span<const ManifestPart* const> parts) {
  const std::int64_t elements = elements_of(tensor);
  std::int64_t sum = 0;
  for (const ManifestPart* part : parts) {
    if (part->count > elements - sum) in.fail("parts of tensor " + quote(name) + " overlap");
    sum += part->count;
  }
  if (sum != elements) {
    in.fail("tensor " + quote(name) + " has " + std::to_string(elements) +
            " elements, and its parts " + std::to_string(sum));
  }
  std::vector<Run> runs;
  std::int64_t expected = 0;
  for (const ManifestPart* part : parts) {
    const SliceStrides strides(tensor.shape, part->dim, part->slice_begin, part->slice_end);
    if (part->count > 0 && strides.part < strides.whole) expected += part->count / strides.part;
    if (expected > kMostRuns) in.fail("tensor " + quote(name) + " is in too many pieces");
    for_each_run(strides, part->begin, part->count,
                 [&](std::int64_t at, std::int64_t, std::int64_t length) {
                   runs.push_back({at, at + length});
                 });
  }
  std::ranges::sort(runs, {}, &Run::begin);
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].begin < runs[i - 1].end) in.fail("parts of tensor " + quote(name) + " overlap");
  }
}

void check_places(const ManifestReader& in, const Manifest& manifest) {
  std::map<std::string, std::vector<const ManifestPart*>> parts;
  std::vector<std::string> files;
  for (const ManifestShard& shard : manifest.shards) {
    files.push_back(shard.file);
    std::vector<std::string> here;
    for (const ManifestPart& part : shard.parts) {
      const auto tensor = manifest.tensors.find(part.tensor);
      if (tensor == manifest.tensors.end()) in.fail("a part of no tensor: " + quote(part.tensor));
      check_part(in, part, tensor->second);
      parts[part.tensor].push_back(&part);
      here.push_back(part.tensor);
    }
    std::ranges::sort(here);
    const auto twice = std::ranges::adjacent_find(here);
    if (twice != here.end())
      in.fail(quote(shard.file) + " has two parts of tensor " + quote(*twice));
  }
  std::ranges::sort(files);
  const auto twice = std::ranges::adjacent_find(files);
  if (twice != files.end()) in.fail("the file " + quote(*twice) + " is there twice");
  for (const auto& [name, tensor] : manifest.tensors) check_coverage(in, name, tensor, parts[name]);
}

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string digest_of(const Json& json) {
  return Sha256().update(dump(json, 1)).digest();
}

// What is one value and might as well be another.
void check_digest(const ManifestReader& in, Json json) {
  const std::string told = in.text(json, kDigest);
  json.erase(kDigest);
  if (told != digest_of(json)) in.fail("it has been changed, or is damaged: its SHA-256 differs");
}

Manifest manifest_of(const ManifestReader& in, const Json& json) {
  Manifest manifest;
  if (in.text(json, "format") != kFormat) in.fail("it is no manifest of a troika checkpoint");
  const std::int64_t version = in.count_in(json, "version");
  if (version != kVersion) {
    in.fail("version " + std::to_string(version) + " is not one that this troika reads (" +
            std::to_string(kVersion) + ")");
  }
  manifest.step = in.count_in(json, "step");
  for (const auto& [name, value] : in.table(json, "numbers").items()) {
    if (value.is_number_integer()) {
      manifest.numbers[name] = value.get<std::int64_t>();
    } else if (value.is_number_float()) {
      manifest.numbers[name] = value.get<double>();
    } else if (const auto nonfinite = nonfinite_of(value)) {
      manifest.numbers[name] = *nonfinite;
    } else {
      in.fail("the number " + quote(name) + " is none");
    }
  }
  manifest.tensors = tensors_of(in, in.table(json, "tensors"));
  for (const Json& shard : in.list(json, "shards")) manifest.shards.push_back(shard_of(in, shard));
  manifest.recipe = in.text(json, "recipe");
  for (const auto& [name, value] : in.table(json, "provenance").items()) {
    if (!value.is_string()) in.fail("provenance " + quote(name) + " is no string");
    manifest.provenance[name] = value.get<std::string>();
  }
  if (const auto found = json.find("encryption"); found != json.end()) {
    manifest.key_id = in.text(*found, "key");
    manifest.code = in.text(*found, "code");
  }
  check_places(in, manifest);
  check_digest(in, json);
  return manifest;
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  Json numbers = Json::object();
  for (const auto& [name, value] : manifest.numbers) {
    const double* const real = std::get_if<double>(&value);
    numbers[name] = real != nullptr ? json_of(*real) : Json(std::get<std::int64_t>(value));
  }
  Json shards = Json::array();
  for (const ManifestShard& shard : manifest.shards) shards.push_back(json_of(shard));
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"step", manifest.step},
               {"numbers", numbers},
               {"tensors", json_of(manifest.tensors)},
               {"shards", shards},
               {"recipe", manifest.recipe},
               {"provenance", manifest.provenance}};
  if (!manifest.key_id.empty()) {
    json["encryption"] = {{"key", manifest.key_id}, {"code", manifest.code}};
  }
  json[kDigest] = digest_of(json);
  std::string text = dump(json, 1) + "\n";
  try {
    (void)parse_manifest(text, "manifest");
  } catch (const DataError& error) {
    throw InternalError(std::string("internal error: ") + error.what());
  }
  return text;
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  const ManifestReader in(source);
  return manifest_of(in, in.parse(text));
}

void authenticate(Manifest& manifest, const EncryptionKey& key) {
  manifest.key_id = key.id();
  manifest.code.clear();
  manifest.code = key.authenticate(format_manifest(manifest));
}

std::optional<EncryptionKey> key_of(const Manifest& manifest, const std::string& source) {
  if (manifest.key_id.empty()) return std::nullopt;
  EncryptionKey key = key_of_id(manifest.key_id, source);
  Manifest as_written = manifest;
  authenticate(as_written, key);
  if (as_written.code == manifest.code) return key;
  throw DataError(source + ": it has been changed since its key authenticated it",
                  "the checkpoint before it may be whole");
}

std::string format_report(const ShardReport& report) {
  return dump({{"shard", report.shard.file.empty() ? Json() : json_of(report.shard)},
               {"tensors", json_of(report.tensors)},
               {"error", report.error}},
              -1);
}

ShardReport parse_report(std::string_view text, const std::string& source) {
  const ManifestReader in(source);
  const Json json = in.parse(text);
  ShardReport report;
  if (const Json& shard = in.member(json, "shard"); !shard.is_null()) {
    report.shard = shard_of(in, shard);
  }
  report.tensors = tensors_of(in, in.table(json, "tensors"));
  report.error = in.text(json, "error");
  return report;
}

}  // namespace troika
