// Internal. Writes a checkpoint in the background of a program of the user's: each rank its own
// file, then rank 0 the manifest, once it knows of all files.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/state_writer.h>
#include <troika/rendezvous/store.h>
#include <troika/session/session.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

namespace troika::detail {

// One at a time. Where the session has a store, ranks tell each other there; a session on a group
// has none, and they do so in finish().
class BackgroundCommit {
 public:
  // Collective.
  BackgroundCommit(CheckpointFolder folder, const Session& session, std::int64_t keep,
                   Seconds timeout);
  BackgroundCommit(const BackgroundCommit&) = delete;
  BackgroundCommit& operator=(const BackgroundCommit&) = delete;
  // Gives up on other ranks.
  ~BackgroundCommit() = default;

  // Copies this rank's parts, and starts to write. Requires that none is under way.
  void begin(std::int64_t step, const StateDict& state, Metadata provenance);
  // Collective: returns when it is there, or what went wrong, the same on every rank. Returns ""
  // where none is under way.
  [[nodiscard]] std::string finish();

 private:
  void run(const std::stop_token& stop);
  // Returns the reports of all ranks on rank 0.
  [[nodiscard]] std::vector<std::string> exchange(const std::string& own,
                                                  const std::stop_token& stop);
  // Returns what rank 0 says of the commit.
  [[nodiscard]] std::string tell(const std::string& own, const std::stop_token& stop);
  [[nodiscard]] std::string wait_for(const std::string& key, const std::stop_token& stop);
  [[nodiscard]] std::string key(const std::string& what) const;
  [[nodiscard]] std::string save_name() const;
  [[nodiscard]] std::string commit(const std::vector<std::string>& reports);
  void remove_old(const Manifest& manifest);

  CheckpointFolder folder_;
  Session session_;  // with the time-out for files
  std::int64_t keep_;
  Seconds timeout_;
  std::string attempt_;
  std::int64_t saves_ = 0;  // two of one step are two attempts
  std::optional<Store> store_;
  Manifest manifest_;  // of the one under way, without its shards
  StateWriter writer_;
  bool is_under_way_ = false;
  // Of the thread, to be read once it has ended.
  std::string problem_;
  std::string warning_;
  std::jthread thread_;
};

}  // namespace troika::detail
