#include <ATen/ATen.h>
#include <chaos/checkpoint_writer.h>
#include <troika/base/error.h>
#include <troika/checkpoint/find_newest.h>
#include <troika/checkpoint/state_writer.h>

namespace troika::chaos {
namespace {

constexpr std::int64_t kRows = 290, kColumns = 300;  // three of them in fp32: 1 MB

at::Tensor whole_of(const std::string& name, std::int64_t step) {
  const auto begin = static_cast<double>(step * 1000 + std::ssize(name));
  return at::arange(kRows * kColumns, at::kFloat).mul_(0.25).add_(begin).view({kRows, kColumns});
}

void add(StateDict& state, const std::string& name, int rank, std::int64_t step) {
  // Cut in odd places, as ZeRO does.
  const std::int64_t cut = kRows * kColumns / 2 - 77;
  const std::int64_t begin = rank == 0 ? 0 : cut;
  const std::int64_t count = rank == 0 ? cut : kRows * kColumns - cut;
  const ShardDescriptor shard{{kRows, kColumns}, {0, 0, kRows}, begin, count, count};
  at::Tensor part = at::empty({count});
  copy_from_whole(shard, whole_of(name, step), part);
  state.add(name, shard, part);
}

Manifest shards_of(const CheckpointFolder& folder, std::int64_t step, const std::string& attempt) {
  Manifest manifest;
  manifest.step = step;
  for (int rank = 0; rank < kRanks; ++rank) {
    const StateDict state = state_of(rank, step);
    manifest.numbers = state.numbers();
    StateWriter writer;
    writer.begin(state, folder.step_folder(step), shard_file_name(rank, kRanks, attempt));
    const ShardReport report = writer.wait();
    if (!report.error.empty()) throw StorageError(report.error);
    manifest.tensors.insert(report.tensors.begin(), report.tensors.end());
    manifest.shards.push_back(report.shard);
  }
  return manifest;
}

}  // namespace

StateDict state_of(int rank, std::int64_t step) {
  StateDict state;
  for (const char* const name : {"w", "optimizer.exp_avg.w", "optimizer.exp_avg_sq.w"}) {
    add(state, name, rank, step);
  }
  state.set("step", step);
  return state;
}

void take_checkpoint(const CheckpointFolder& folder, std::int64_t step, const std::string& attempt,
                     const std::function<void()>& committed) {
  const Manifest manifest = shards_of(folder, step, attempt);
  folder.commit(manifest);
  if (committed) committed();
  (void)folder.read(step);
  folder.remove_unnamed(manifest);
  folder.remove_old(step, kKeep);
}

void write_shards(const CheckpointFolder& folder, std::int64_t step, const std::string& attempt) {
  (void)shards_of(folder, step, attempt);
}

std::string difference_of_newest(const CheckpointFolder& folder, std::int64_t step) {
  std::string problems;
  const CheckpointReaders alone{
      0, 1, [](const std::string& text) { return std::vector<std::string>{text}; },
      [](int) { return std::string("rank 0"); }};
  std::optional<StateReader> reader =
      open_newest(folder, alone, [&](std::int64_t damaged, const std::string& problem) {
        problems += "step " + std::to_string(damaged) + " is damaged: " + problem + "; ";
      });
  if (!reader) return "there is none";
  if (reader->manifest().step != step) {
    problems += "it is of step " + std::to_string(reader->manifest().step) + "; ";
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const StateDict expected = state_of(rank, step);
    StateDict found = state_of(rank, 0);
    reader->read(found);
    for (std::size_t i = 0; i < expected.tensors().size(); ++i) {
      if (!found.tensors()[i].tensor.equal(expected.tensors()[i].tensor)) {
        problems += "other values of " + expected.tensors()[i].name + "; ";
      }
    }
    if (found.integer("step") != step) problems += "the number of another step; ";
  }
  return problems;
}

}  // namespace troika::chaos
