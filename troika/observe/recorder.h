// The flight recorder: what this rank's collectives are doing, in a memory-mapped file that its
// peers and the launcher can read also when the rank is stopped or dead. It holds the last
// operations, each with its start and end, so that a missed deadline can be told with what the
// missing rank last did.
//
// The file, version 3; integers are little-endian, times are nanoseconds since 1970, texts are
// UTF-8 filled up with zero bytes (cut where too long, and then not zero-terminated):
//
//   header, 256 bytes                       record i at 256 + 192 i, for i < capacity
//     0  char[8]  magic "TRKFLT01"            0  u64       sequence; 0: empty or being written
//     8  u32      version, 3                  8  u32       state: 1 running, 2 finished, 3 failed
//    12  u32      size of the header, 256    12  u32       steps: waits for others, so far
//    16  u32      size of a record, 192      16  i64       started
//    20  u32      capacity, 1 to 65536       24  i64       finished; 0 while running
//    24  i32      rank                       32  u64       bytes of the operation's input
//    28  i32      process id                 40  u64       bytes sent to others, so far
//    32  u64      operations begun so far    48  u64       place in its group, see `place` below
//    40  i64      time of creation           56  u32       generation of the group
//    48  char[64] host                       60  u32       group, see `group` below
//   112  zeros                               64  u64       signature: what members must agree on
//                                            72  i64       elements of the operation's input
//                                            80  char[8]   dtype: "fp32"
//                                            88  char[16]  operation: "all_reduce"
//                                           104  char[24]  axis: "data"
//                                           128  char[64]  label: "gradients of layers.3"
//
// Operations are numbered from 1; number n is kept in record (n - 1) mod capacity, until n +
// capacity takes its place. A writer first sets the record's sequence to 0, then writes the rest,
// then the sequence; it sets `finished` before `state`. So a reader that finds the same sequence
// before and after has read a whole record. The file must lie on a file system of the writer's
// host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The facts of an operation that are known when it begins.
struct OperationFacts {
  std::string_view operation;
  std::string_view axis;
  std::string_view label;
  std::uint64_t bytes = 0;      // of the input
  std::int64_t elements = 0;    // of the input
  std::string_view dtype = {};  // of the input
  // The place among the collectives of its group, from 1. Zero where only some of the group take
  // part.
  std::uint64_t place = 0;
  std::uint64_t generation = 0;  // of the group
  std::uint64_t signature = 0;   // equal on all members that are in the same operation
  // A number equal on all members of a group, and another for each group, also among those of an
  // axis. It is made of the members, the generation and the number of such groups before.
  std::uint32_t group = 0;
};

class Recorder {
 public:
  static constexpr std::uint32_t kDefaultCapacity = 1024;

  // Makes the file, in place of one that was there, and reserves its space: later writes cannot run
  // into a full disk. Throws StorageError naming it, UsageError if `capacity` is not 1 to 65536.
  [[nodiscard]] static std::shared_ptr<Recorder> create(const std::filesystem::path& path, int rank,
                                                        std::string_view host,
                                                        std::uint32_t capacity = kDefaultCapacity);
  // Returns a recorder in memory, which no other process can read, for a program that wants no
  // files.
  [[nodiscard]] static std::shared_ptr<Recorder> none();

  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Starts an operation and returns its number. This and the functions below may be called by any
  // thread. They never block, allocate or throw, except record_error(), which writes a file.
  std::uint64_t begin(const OperationFacts& facts) noexcept {
    const std::uint64_t sequence = take_number();
    write(sequence, facts);
    return sequence;
  }
  // Do the same in two calls: take the number, then write the record. Without the record the
  // functions below have no effect.
  std::uint64_t take_number() noexcept;
  void write(std::uint64_t sequence, const OperationFacts& facts) noexcept;
  // Adds to the bytes that the operation has sent to others, and to its waits for them.
  void add_traffic(std::uint64_t sequence, std::uint64_t bytes, std::uint32_t steps) noexcept;
  // End the operation, well or with an error. No effect if a later one has taken its record.
  void end(std::uint64_t sequence) noexcept;
  void fail(std::uint64_t sequence) noexcept;
  // Saves the error that ended an operation of this rank, or kept it from connecting to others. It
  // is left beside the file for the launcher (saved_error.h). Only the first is saved: a
  // DeadlineError, PeerError or other RendezvousError. The error is there when this returns, unless
  // another thread is still writing it.
  void record_error(const std::exception_ptr& error) noexcept;

  // Returns the number of operations begun so far.
  [[nodiscard]] std::uint64_t count() const noexcept;

 private:
  Recorder(void* mapping, std::size_t size, int rank, std::string_view host,
           std::uint32_t capacity);
  void close(std::uint64_t sequence, std::uint32_t state) noexcept;

  std::byte* mapping_;
  std::size_t size_;
  std::uint32_t capacity_;
  int rank_;
  std::filesystem::path folder_;  // empty: in memory only
  std::atomic<bool> error_saved_ = false;
};

// An operation that is about to start. It has its number; its record is written once, when its
// engine calls write().
class OperationEntry {
 public:
  // Requires that `facts` outlives this. Without a recorder nothing is written.
  OperationEntry(Recorder* recorder, const OperationFacts& facts)
      : recorder_(recorder),
        facts_(facts),
        sequence_(recorder ? recorder->take_number() : 0),
        written_(recorder == nullptr) {}
  OperationEntry(const OperationEntry&) = delete;
  OperationEntry& operator=(const OperationEntry&) = delete;

  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  void write() noexcept {
    if (written_) return;
    recorder_->write(sequence_, facts_);
    written_ = true;
  }

 private:
  Recorder* recorder_;
  const OperationFacts& facts_;
  std::uint64_t sequence_;
  bool written_;
};

// The record of an operation under way, for the engine that carries it out. A small value that must
// not outlive the recorder; one without a recorder does nothing.
class OperationRecord {
 public:
  OperationRecord() = default;
  // Takes the number that the recorder has for the operation.
  OperationRecord(Recorder* recorder, std::uint64_t sequence, const OperationFacts& facts)
      : recorder_(recorder),
        sequence_(sequence),
        place_(facts.place),
        signature_(facts.signature),
        group_(facts.group) {}

  [[nodiscard]] std::uint64_t place() const { return place_; }
  [[nodiscard]] std::uint32_t group() const { return group_; }
  [[nodiscard]] std::uint64_t signature() const { return signature_; }
  // Returns a record of the same operation that writes nothing.
  [[nodiscard]] OperationRecord unwritten() const {
    OperationRecord copy = *this;
    copy.recorder_ = nullptr;
    return copy;
  }
  void sent(std::uint64_t bytes) const noexcept {
    if (recorder_ && bytes > 0) recorder_->add_traffic(sequence_, bytes, 0);
  }
  void step() const noexcept {
    if (recorder_) recorder_->add_traffic(sequence_, 0, 1);
  }
  // Saves the error of an operation that its caller aborts before it has ended.
  void record_error(const std::exception_ptr& error) const noexcept {
    if (recorder_) recorder_->record_error(error);
  }

 private:
  Recorder* recorder_ = nullptr;
  std::uint64_t sequence_ = 0;
  std::uint64_t place_ = 0;
  std::uint64_t signature_ = 0;
  std::uint32_t group_ = 0;
};

// Returns <folder>/flight-rank-3.bin.
[[nodiscard]] std::filesystem::path recorder_path(const std::filesystem::path& folder, int rank);

struct RecordedOperation {
  enum class State { kRunning, kFinished, kFailed };
  std::uint64_t sequence = 0;
  State state = State::kRunning;
  std::int64_t started = 0;      // ns since 1970
  std::int64_t finished = 0;     // ns since 1970; 0 while running
  std::uint64_t bytes = 0;       // of the input
  std::int64_t elements = 0;     // of the input
  std::string dtype;             // of the input
  std::uint64_t sent = 0;        // bytes, to others
  std::uint32_t steps = 0;       // waits for others
  std::uint64_t place = 0;       // among the group's collectives; 0: only some take part
  std::uint64_t generation = 0;  // of the group
  std::uint64_t signature = 0;
  std::string operation;
  std::string axis;
  std::string label;
  std::uint32_t group = 0;  // see OperationFacts
};

struct Recording {
  int rank = 0;
  int process_id = 0;
  std::string host;
  std::int64_t created = 0;                   // ns since 1970
  std::uint64_t count = 0;                    // operations begun so far
  std::vector<RecordedOperation> operations;  // those still held, in ascending order
};

// Reads a recorder's file while it is written, or afterwards. Texts hold printable characters only.
// Throws DataError naming the file if it is missing or is no such file; single records that make no
// sense are left out.
[[nodiscard]] Recording read_recorder(const std::filesystem::path& path);

// Reads two copies of the file's bytes in the same way, the second taken after the first. A record
// whose sequence differs between them was being overwritten, and is left out. `source` is what
// errors name.
[[nodiscard]] Recording decode_recording(std::string_view first, std::string_view second,
                                         const std::string& source);

// Returns "all_reduce 'gradients'".
[[nodiscard]] std::string name_of(const RecordedOperation& operation);

// Describes, for an error message, the oldest operation that is running: "in all_reduce 'gradients
// of layers.3' (axis data, 4.0 MiB) for 12.3 s". Where none is, describes the last one: "finished
// barrier 'start' (axis data) 12.3 s ago and began nothing since". `now` is in ns since 1970.
[[nodiscard]] std::string describe_last(const Recording& recording, std::int64_t now);

}  // namespace troika
