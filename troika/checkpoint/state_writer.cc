#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/checkpoint_files.h>
#include <troika/checkpoint/safetensors.h>
#include <troika/checkpoint/state_writer.h>
#include <troika/checkpoint/tensors.h>
#include <troika/device/device.h>
#include <troika/device/huge_pages.h>

#include <ranges>
#include <utility>

namespace troika {
namespace {

DataType type_of(const StateTensor& tensor) {
  const auto type = data_type_of(tensor.tensor.scalar_type());
  check(type.has_value(), "a tensor of a run's state whose type no file has: " + tensor.name);
  return *type;
}

}  // namespace

void StateWriter::begin(const StateDict& state, const std::filesystem::path& folder,
                        const std::string& name, std::uint64_t most_copied) {
  check(!is_writing(), "two writings of a checkpoint at once");
  report_ = {};
  done_ = false;
  state_released_ = {};
  is_state_released_ = false;
  stage(state, most_copied);
  // Before the thread starts: with copies of everything the caller need not wait for the disk.
  if (memory_.size() == entries_.size()) release_state();
  if (!entries_.empty()) report_.shard.file = name;
  const std::future<void> released = state_released_.get_future();
  thread_ = std::jthread([this, folder, name] {
    const at::NoGradGuard no_autograd;
    try {
      if (!entries_.empty()) write(folder, name);
    } catch (const Error& error) {
      report_ = {.error = error.what()};
    } catch (const std::exception& error) {
      const std::string file = shown_place(place_below(folder, name));
      report_ = {.error = "cannot write " + file + ": " + error.what()};
    }
    done_ = true;
    release_state();
  });
  released.wait();
}

void StateWriter::stage(const StateDict& state, std::uint64_t most_copied) {
  entries_.clear();
  sources_.clear();
  at::Device device = at::kCPU;
  for (const StateTensor& each : state.tensors()) {
    if (each.shard.owned == 0) continue;
    const at::Tensor part = each.tensor.narrow(0, 0, each.shard.owned);
    if (!part.is_cpu()) device = part.device();
    entries_.push_back({.name = each.name, .type = type_of(each), .shape = {part.numel()}});
    sources_[each.name] = {part};
    report_.tensors[each.name] = {type_of(each), each.shard.shape};
    report_.shard.parts.push_back({each.name, each.shard.slice.dim, each.shard.slice.begin,
                                   each.shard.slice.end, each.shard.begin, each.shard.owned});
  }
  entries_ = lay_out_safetensors(std::move(entries_));
  std::uint64_t copied = 0;
  std::size_t copies = 0;
  for (const TensorEntry& entry : entries_ | std::views::reverse) {
    copied += entry.bytes();
    if (copied > most_copied) break;
    Source& source = sources_.at(entry.name);
    copy(source.values, copies++);
    source.is_copy = true;
  }
  memory_.resize(copies);
  // The copies above are queued on the device; the caller may change the state once this has
  // returned.
  if (!device.is_cpu())
    DeviceEvent::record(device).wait(Deadline::in(Seconds(600)), "a checkpoint");
}

// Memory is taken once: the parts have the same sizes every time.
void StateWriter::copy(at::Tensor& values, std::size_t index) {
  if (index == memory_.size()) memory_.emplace_back();
  at::Tensor& memory = memory_[index];
  if (!memory.defined() || memory.sizes() != values.sizes() ||
      memory.scalar_type() != values.scalar_type()) {
    memory = in_huge_pages(host_memory_for(values.device(), values));
  }
  memory.copy_(values, /*non_blocking=*/true);
  values = memory;
}

void StateWriter::write(const std::filesystem::path& folder, const std::string& name) {
  Sha256 hash;
  SafetensorsChunks chunks(entries_, [this](const TensorEntry& entry) { return bytes_of(entry); },
                           {.hash = &hash, .key = key_});
  CheckpointFiles(folder).write(name, [&] { return chunks.next(); });
  report_.shard.bytes = chunks.bytes();
  report_.shard.sha256 = hash.digest();
}

// Copies come last in the file: with the first of them the state is not needed any more.
std::span<const std::byte> StateWriter::bytes_of(const TensorEntry& entry) {
  const Source& source = sources_.at(entry.name);
  if (source.is_copy) release_state();
  on_host_ = source.values.is_cpu() ? source.values : source.values.cpu();
  return {static_cast<const std::byte*>(on_host_.const_data_ptr()), on_host_.nbytes()};
}

void StateWriter::release_state() {
  if (!std::exchange(is_state_released_, true)) state_released_.set_value();
}

ShardReport StateWriter::wait() {
  check(is_writing(), "nothing is being written");
  thread_.join();
  sources_.clear();
  on_host_.reset();
  return std::move(report_);
}

std::uint64_t StateWriter::staging_bytes() const {
  std::uint64_t bytes = 0;
  for (const at::Tensor& each : memory_) bytes += each.nbytes();
  return bytes;
}

}  // namespace troika
