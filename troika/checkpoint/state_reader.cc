#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/checkpoint/overlap.h>
#include <troika/checkpoint/state_reader.h>
#include <troika/checkpoint/tensor_diff.h>
#include <troika/checkpoint/tensors.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace troika {

StateReader::StateReader(const CheckpointFolder& folder, std::int64_t step)
    : StateReader(CheckpointFiles(folder.step_folder(step)), folder.read(step)) {}

StateReader::StateReader(const std::filesystem::path& step_folder)
    : StateReader(CheckpointFiles(step_folder), read_checkpoint(step_folder)) {}

StateReader::StateReader(CheckpointFiles files, Manifest manifest)
    : checkpoint_(std::move(files)), manifest_(std::move(manifest)) {
  for (std::size_t i = 0; i < manifest_.shards.size(); ++i) {
    for (const ManifestPart& part : manifest_.shards[i].parts) {
      sources_[part.tensor].push_back({i, &part});
    }
  }
}

// Workers of servers that take local steps keep the state of the optimiser to themselves, and other
// optimisers have other state. Either way the values are there.
void StateReader::fail_missing(const std::string& name) const {
  const bool is_state = owner_of(name) == TensorOwner::kOptimizer;
  throw DataError(shown_place(path()) + " has no tensor " + quote(name),
                  is_state ? "it has no such state of an optimiser; a run of another name starts "
                             "from its values: --set name=NAME --set model.from=" +
                                 shown_place(path())
                           : "it is of another model");
}

void StateReader::check_wanted(std::span<const StateTensor> all) const {
  for (const StateTensor& wanted : all) {
    const auto found = manifest_.tensors.find(wanted.name);
    if (found == manifest_.tensors.end()) fail_missing(wanted.name);
    if (found->second.shape != wanted.shard.shape) {
      throw DataError(shown_place(path()) + ": tensor " + quote(wanted.name) + " has another shape",
                      "it is of another model");
    }
  }
}

void StateReader::read(StateDict& state) {
  check_wanted(state.tensors());
  for (const StateTensor& wanted : state.tensors()) read(wanted);
  set_numbers(state);
}

void StateReader::set_numbers(StateDict& state) const {
  for (const auto& [name, number] : manifest_.numbers) {
    std::visit([&, &key = name](const auto value) { state.set(key, value); }, number);
  }
}

const SafetensorsFile& StateReader::file(std::size_t shard) {
  const auto found = files_.find(shard);
  if (found != files_.end()) return found->second;
  const ManifestShard& named = manifest_.shards[shard];
  return files_
      .try_emplace(shard, checkpoint_.open(manifest_, named), place_below(path(), named.file))
      .first->second;
}

void StateReader::verify(std::size_t first, std::size_t every) {
  for (std::size_t i = first; i < manifest_.shards.size(); i += every) verify_file(i);
}

void StateReader::verify_file(std::size_t file) {
  if (is_remote(path().native())) {
    (void)this->file(file);  // compared on its way
  } else {
    checkpoint_.verify(manifest_, manifest_.shards[file]);
  }
}

// A rank holds all of an encrypted file in memory, and copies one of a store to its disk.
PartReaders StateReader::readers() const {
  const bool is_plain = manifest_.key_id.empty() && !is_remote(path().native());
  return is_plain ? PartReaders::kAllOfOneHost : PartReaders::kOne;
}

std::vector<std::size_t> StateReader::files_of(const std::string& tensor) const {
  std::vector<std::size_t> files;
  const auto found = sources_.find(tensor);
  if (found == sources_.end()) return files;
  for (const Source& source : found->second) {
    if (files.empty() || files.back() != source.shard) files.push_back(source.shard);
  }
  return files;
}

std::span<const std::byte> StateReader::bytes(const Source& source, DataType type) {
  const SafetensorsFile& file = this->file(source.shard);
  const TensorEntry& entry = file.at(source.part->tensor);
  if (entry.type != type || entry.shape != std::vector<std::int64_t>{source.part->count}) {
    throw DataError(shown_place(file.path()) + ": tensor " + quote(entry.name) +
                    " is not as the manifest says");
  }
  return file.data(entry);
}

void StateReader::fill(const StateTensor& wanted, const at::Tensor& values, DataType type) {
  std::int64_t filled = 0;
  for (const Source& source : sources_[wanted.name]) {
    const ManifestPart& part = *source.part;
    const ShardDescriptor from{wanted.shard.shape,
                               {part.dim, part.slice_begin, part.slice_end},
                               part.begin,
                               part.count,
                               part.count};
    filled += copy_overlap(from, bytes(source, type).data(), wanted.shard,
                           static_cast<std::byte*>(values.mutable_data_ptr()),
                           static_cast<std::size_t>(size_of(type)));
  }
  check(filled == wanted.shard.count, "a manifest with holes");
  // Any other byte is undefined behaviour once it is read as a bool.
  if (type == DataType::kBool && values.view(at::kByte).gt(1).any().item<bool>()) {
    throw DataError(shown_place(path()) + ": tensor " + quote(wanted.name) +
                    ": a BOOL is neither 0 nor 1");
  }
}

void StateReader::read(const StateTensor& wanted) {
  const DataType type = manifest_.tensors.at(wanted.name).type;
  const at::ScalarType scalar = scalar_type_of(type);
  if (wanted.tensor.is_cpu() && wanted.tensor.scalar_type() == scalar) {
    fill(wanted, wanted.tensor, type);
    return;
  }
  const auto most = static_cast<std::int64_t>(kChunkBytes / size_of(type));
  for (std::int64_t begin = 0; begin < wanted.shard.count; begin += most) {
    StateTensor piece{wanted.name, wanted.shard, {}};
    piece.shard.begin += begin;
    piece.shard.count = std::min(most, wanted.shard.count - begin);
    if (!staging_.defined() || staging_.scalar_type() != scalar ||
        staging_.numel() < piece.shard.count) {
      staging_ = at::empty({piece.shard.count}, scalar);
    }
    const at::Tensor values = staging_.narrow(0, 0, piece.shard.count);
    fill(piece, values, type);
    wanted.tensor.narrow(0, begin, piece.shard.count).copy_(values);
  }
}

}  // namespace troika
