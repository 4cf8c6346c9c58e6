#include <troika/base/archive_directory.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/models/torchscript/torchscript.h>
#include <troika/train/model_sources.h>

#include <algorithm>
#include <string>

namespace troika {
namespace {

// Where the source lay, line by line; and a digest of all records' names.
bool is_about_writing(const std::string& record) {
  return record.ends_with(".debug_pkl") || record == ".data/serialization_id";
}

// The first folder has the name that the file was written under.
std::string name_inside(const std::string& record) {
  return record.substr(record.find('/') + 1);
}

std::vector<SourcePart> parts_of_archive(const std::vector<ArchiveRecord>& records) {
  std::vector<SourcePart> parts;
  for (const ArchiveRecord& each : records) {
    const std::string name = name_inside(each.name);
    if (is_about_writing(name)) continue;
    const std::string facts = std::to_string(each.size) + " " + std::to_string(each.crc32);
    parts.push_back({"record " + quote(name, 200), content_hash(facts)});
  }
  return parts;
}

std::vector<SourcePart> tensors_of_script(const std::filesystem::path& path) {
  std::vector<SourcePart> parts;
  for (const NamedTensor& each : script_tensors(path)) {
    parts.push_back(tensor_part(each.name, each.tensor));
  }
  return parts;
}

}  // namespace

std::vector<SourcePart> parts_of_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (is_archive(file.bytes())) {
    const auto records = read_archive_directory(file.bytes(), shown_path(path));
    const bool has_checksums = std::ranges::none_of(
        records, [](const ArchiveRecord& each) { return each.size > 0 && each.crc32 == 0; });
    if (has_checksums) return parts_of_archive(records);
  }
  return {{"", content_hash(file.bytes())}};
}

std::vector<SharedSource> model_sources(const ModelOptions& model) {
  std::vector<SharedSource> sources;
  for (const std::filesystem::path& path : model.kind().files(model.options())) {
    SharedSource& source = sources.emplace_back();
    source.title = "the model's file " + shown_path(path);
    source.path = path;
    source.parts = [path] { return parts_of_file(path); };
    // Of a script: its tensors have better names than its records.
    source.details = [path]() -> std::vector<SourcePart> {
      if (!is_archive(MappedFile(path).bytes())) return {};
      return tensors_of_script(path);
    };
    source.hint_if_details_are_equal =
        "all tensors are equal, and the code is not: torch.jit.save() of a script that was loaded "
        "writes its code anew. Copy one file to every host";
  }
  return sources;
}

std::map<std::string, std::string> digests_of_model(const ModelOptions& model) {
  std::map<std::string, std::string> digests;
  for (const SharedSource& source : model_sources(model)) {
    std::string text;
    for (const SourcePart& part : source.parts()) text += part.name + " " + hex(part.digest) + "\n";
    digests[source.title] = hex(content_hash(text));
  }
  return digests;
}

void agree_on_model(const ModelOptions& model, const Job& job) {
  agree_on_sources(job.session(), model_sources(model),
                   {"files of the model", job.start_patience()});
}

}  // namespace troika
