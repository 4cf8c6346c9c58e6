#include <ATen/ATen.h>
#include <fcntl.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/device/device.h>
#include <troika/train/ledger.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <span>

namespace troika {
namespace {

std::string hash_of_sample(const Microbatch& microbatch, std::int64_t index) {
  ContentHash hash;
  for (const NamedTensor& each : microbatch.tensors) {
    const at::Tensor row = to_host(each.tensor.select(0, index)).contiguous();
    hash.update(each.name).update(
        std::span(static_cast<const std::byte*>(row.const_data_ptr()), row.nbytes()));
  }
  return hex(hash.digest());
}

}  // namespace

std::filesystem::path ledger_path(const std::filesystem::path& run, int rank) {
  return run / "ledger" / ("rank-" + std::to_string(rank) + ".jsonl");
}

Ledger::Ledger(const std::filesystem::path& run, int rank) : path_(ledger_path(run, rank)) {}

void Ledger::begin(const StepBatch& batch) {
  nlohmann::ordered_json line = {{"step", batch.step},
                                 {"ordinals", nlohmann::ordered_json::array()},
                                 {"samples", nlohmann::ordered_json::array()}};
  for (const Microbatch& microbatch : batch.microbatches) {
    const at::Tensor ids = to_host(microbatch.sample_ids);
    for (std::int64_t i = 0; i < ids.numel(); ++i) {
      line["ordinals"].push_back(ids[i].item<std::int64_t>());
      line["samples"].push_back(hash_of_sample(microbatch, i));
    }
  }
  line_ = line.dump() + "\n";
}

// Opened anew each time: the run's folder may have been cleared away meanwhile. One write is whole
// or not there where the process is killed.
void Ledger::commit() {
  make_folders(path_.parent_path());
  const UniqueFd file(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file.valid()) throw_storage_error("write", path_, errno);
  write_all(file.get(), std::as_bytes(std::span(line_)), path_);
}

}  // namespace troika
