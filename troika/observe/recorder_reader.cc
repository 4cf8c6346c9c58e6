// Reads flight records, of ranks that run or have died.
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/observe/recorder.h>
#include <troika/observe/recorder_format.h>

#include <algorithm>
#include <cstring>

namespace troika {
namespace {

using recorder_format::Header;
using recorder_format::Record;
using recorder_format::RecordState;

template <std::size_t kSize>
std::string text_of_field(const char (&field)[kSize]) {
  return recorder_format::as_read({field, kSize}, kSize);
}

template <typename T>
T copy_at(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

[[noreturn]] void throw_bad(const std::string& source, const std::string& why) {
  throw DataError(quote(source) + " is no flight recorder file: " + why);
}

// The header, after checking that it agrees with the size.
Header checked_header(std::string_view bytes, const std::string& source) {
  if (bytes.size() < sizeof(Header)) throw_bad(source, "it is shorter than the header");
  const auto header = copy_at<Header>(bytes, 0);
  if (std::string_view(header.magic, sizeof(header.magic)) != recorder_format::kMagic) {
    throw_bad(source, "its magic number is another");
  }
  if (header.version != recorder_format::kVersion) {
    throw_bad(source, "its version is " + std::to_string(header.version) + ", not " +
                          std::to_string(recorder_format::kVersion));
  }
  if (header.header_bytes != sizeof(Header) || header.record_bytes != sizeof(Record) ||
      header.capacity < 1 || header.capacity > recorder_format::kMaxCapacity) {
    throw_bad(source, "its header states impossible sizes");
  }
  const std::size_t expected = recorder_format::file_size(header.capacity);
  if (bytes.size() != expected) {
    throw_bad(source, "it holds " + std::to_string(bytes.size()) +
                          " bytes where its header states " + std::to_string(expected));
  }
  return header;
}

RecordedOperation decode(const Record& record) {
  RecordedOperation operation;
  operation.sequence = record.sequence;
  operation.started = record.started;
  operation.bytes = record.bytes;
  operation.elements = record.elements;
  operation.dtype = text_of_field(record.dtype);
  operation.sent = record.sent;
  operation.steps = record.steps;
  operation.place = record.place;
  operation.generation = record.generation;
  operation.group = record.group;
  operation.signature = record.signature;
  operation.operation = text_of_field(record.operation);
  operation.axis = text_of_field(record.axis);
  operation.label = text_of_field(record.label);
  const auto state = static_cast<RecordState>(record.state);
  // The writer sets `finished` first; where we see only half of it, it was running a moment ago.
  if (state == RecordState::kRunning || record.finished == 0) return operation;
  operation.finished = record.finished;
  operation.state = state == RecordState::kFinished ? RecordedOperation::State::kFinished
                                                    : RecordedOperation::State::kFailed;
  return operation;
}

bool plausible(const Record& record, std::uint32_t slot, std::uint32_t capacity,
               std::uint64_t count) {
  return record.sequence != 0 && record.sequence <= count &&
         (record.sequence - 1) % capacity == slot &&
         record.state >= static_cast<std::uint32_t>(RecordState::kRunning) &&
         record.state <= static_cast<std::uint32_t>(RecordState::kFailed);
}

std::string described(const RecordedOperation& operation) {
  std::string text = name_of(operation) + " (axis " + operation.axis;
  if (operation.bytes > 0) text += ", " + format_bytes(operation.bytes);
  return text + ")";
}

}  // namespace

Recording decode_recording(std::string_view first, std::string_view second,
                           const std::string& source) {
  // The later count covers all records of the earlier copy.
  const Header header = checked_header(second, source);
  if (checked_header(first, source).capacity != header.capacity) {
    throw_bad(source, "it was replaced while it was read");
  }
  Recording recording{header.rank,    header.process_id, text_of_field(header.host),
                      header.created, header.count,      {}};
  for (std::uint32_t slot = 0; slot < header.capacity; ++slot) {
    const std::size_t offset = sizeof(Header) + slot * sizeof(Record);
    const auto record = copy_at<Record>(first, offset);
    if (copy_at<std::uint64_t>(second, offset) != record.sequence) continue;
    if (!plausible(record, slot, header.capacity, header.count)) continue;
    recording.operations.push_back(decode(record));
  }
  std::sort(recording.operations.begin(), recording.operations.end(),
            [](const RecordedOperation& a, const RecordedOperation& b) {
              return a.sequence < b.sequence;
            });
  return recording;
}

Recording read_recorder(const std::filesystem::path& path) {
  const std::uint64_t most = recorder_format::file_size(recorder_format::kMaxCapacity);
  const std::string first = read_file(path, most);
  return decode_recording(first, read_file(path, most), path.string());
}

std::string name_of(const RecordedOperation& operation) {
  return operation.operation + " '" + operation.label + "'";
}

std::string describe_last(const Recording& recording, std::int64_t now) {
  const std::vector<RecordedOperation>& operations = recording.operations;
  if (operations.empty()) return "began no operation";
  const auto running =
      std::find_if(operations.begin(), operations.end(), [](const RecordedOperation& operation) {
        return operation.state == RecordedOperation::State::kRunning;
      });
  if (running != operations.end()) {
    return "in " + described(*running) + " for " + format_elapsed(running->started, now);
  }
  const RecordedOperation& last = operations.back();
  const bool failed = last.state == RecordedOperation::State::kFailed;
  return (failed ? "failed in " : "finished ") + described(last) + " " +
         format_elapsed(last.finished, now) + " ago and began nothing since";
}

}  // namespace troika
