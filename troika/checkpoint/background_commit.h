// Writes a checkpoint in the background of training: each rank its own file, then rank 0 the
// manifest, as soon as it knows of all files. Training may end meanwhile, or never take another
// step: what all ranks have written is a checkpoint.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/state_writer.h>
#include <troika/rendezvous/store.h>
#include <troika/session/session.h>

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troika {

// Says what a commit does beside the manifest, all on a background thread of rank 0.
struct CommitSettings {
  std::int64_t keep = 3;  // the newest checkpoints that stay
  Seconds timeout{1800};  // for ranks that wait for each other's files
  // Returns the steps of checkpoints that stay beside the newest.
  std::function<std::vector<std::int64_t>()> also_keep = {};
  // Throws where the folder is no longer this program's, which keeps the checkpoint from being
  // committed: asked before `before`, and before each attempt to write to a store's folder.
  std::function<void()> check = {};
  // Runs once all files are there and before the manifest is: what it throws keeps the checkpoint
  // from being committed.
  std::function<void(std::int64_t step)> before = {};
  // Runs once the checkpoint is there: what it throws is a warning.
  std::function<void(std::int64_t step)> after = {};
};

// One at a time. Where the session has a store, threads of the ranks tell each other there what
// they have written, so that no rank has to call anything. A session on a group has no store, and
// its ranks tell each other in finish().
class BackgroundCommit {
 public:
  // Collective.
  BackgroundCommit(CheckpointFolder folder, const Session& session, CommitSettings settings);
  BackgroundCommit(const BackgroundCommit&) = delete;
  BackgroundCommit& operator=(const BackgroundCommit&) = delete;
  // Waits for this rank's own file, and gives up on other ranks.
  ~BackgroundCommit() = default;

  // Copies at most `most_copied` bytes of this rank's parts, writes the others, and goes on writing
  // in the background (StateWriter::begin). `manifest` has step, recipe and provenance. Requires
  // that none is under way.
  void begin(const StateDict& state, Manifest manifest,
             std::uint64_t most_copied = StateWriter::kCopyAll);
  // Returns whether nothing is left to do: always, where none is under way.
  [[nodiscard]] bool is_done() const;
  // Waits until is_done(), or the deadline passes. Not collective: for a rank that has failed.
  void wait_until_done(const Deadline& deadline) const;
  // Returns what went wrong with one that is done, once; "" otherwise. Not collective.
  [[nodiscard]] std::string take_problem();
  // Collective: returns when it is there, or what went wrong, the same on every rank. Returns ""
  // where none is under way, or take_problem() has returned it. Throws DeadlineError, PeerError.
  [[nodiscard]] std::string finish();
  // Returns the bytes of the copies.
  [[nodiscard]] std::uint64_t staging_bytes() const { return writer_.staging_bytes(); }

 private:
  void run(std::promise<void> written, const std::stop_token& stop);
  // Returns the reports of all ranks on rank 0.
  [[nodiscard]] std::vector<std::string> exchange(const std::string& own,
                                                  const std::stop_token& stop);
  // Returns what rank 0 says of the commit.
  [[nodiscard]] std::string share_outcome(const std::string& own, const std::stop_token& stop);
  [[nodiscard]] std::string wait_for(const std::string& key, const std::stop_token& stop);
  [[nodiscard]] std::string key(const std::string& what) const;
  [[nodiscard]] std::string save_name() const;
  [[nodiscard]] std::string name_of(std::size_t rank) const;
  [[nodiscard]] std::string commit(const std::vector<std::string>& reports);
  void remove_old(const Manifest& manifest);
  void log_warnings();

  CheckpointFolder folder_;
  std::vector<Member> members_;
  Session session_;  // with the time-out for files
  CommitSettings settings_;
  std::string attempt_;
  std::int64_t saves_ = 0;  // two of one step are two attempts
  std::optional<Store> store_;
  Manifest manifest_;  // of the one under way, without its shards
  StateWriter writer_;
  bool is_under_way_ = false;       // until finish()
  std::future<void> file_written_;  // by the thread
  std::future<void> ended_;         // of the thread
  // Results of the thread, to be read once it has ended.
  std::string problem_;
  std::vector<std::string> warnings_;
  std::jthread thread_;
};

}  // namespace troika
