// What a machine that lost its power holds afterwards, by what POSIX promises and nothing more: the
// bytes of a file that were there at its last fsync, and the names of a folder at the folder's. Of
// all later ones any may be there or not.
#pragma once

#include <chaos/file_layer.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace troika::chaos {

// What becomes of that which was not synced.
enum class Unsynced {
  kLost,
  kTorn  // is there or not, name by name and page by page
};

class PowerLoss {
 public:
  // Takes what lies in `root` as durable. Its files get a second name in `graves`, as those will
  // that a process makes (watch()).
  PowerLoss(std::filesystem::path root, std::filesystem::path graves);

  // Adds what a process has done. Throws std::logic_error for a change that it does not know.
  void replay(const Record& record);
  // Makes the folder `to`. Files that are whole become further names of the same file.
  void rebuild(const std::filesystem::path& to, Unsynced unsynced, std::uint64_t seed) const;

 private:
  struct Entry {
    enum class Kind { kAbsent, kFile, kFolder } kind = Kind::kAbsent;
    std::uint64_t number = 0;  // of the file, or the index of the folder
  };
  // By name: what it stood for at the last sync of the folder, and since.
  using Names = std::map<std::string, std::vector<Entry>>;
  struct Range {
    std::uint64_t begin, end;
  };
  struct File {
    std::uint64_t size = 0;
    std::uint64_t synced_size = 0;
    std::vector<Range> unsynced;
    bool is_lost = false;    // a sync has failed
    bool was_there = false;  // before the process
  };
  using Random = std::mt19937_64;

  std::uint64_t scan(const std::filesystem::path& folder);
  [[nodiscard]] std::uint64_t folder_at(const std::filesystem::path& path) const;
  std::vector<Entry>& history_of(const std::filesystem::path& path);
  void apply(const Operation& operation);
  void write(const Operation& operation);
  void sync(std::uint64_t number);
  void sync_names(const std::filesystem::path& folder);
  void rebuild_folder(std::uint64_t index, const std::filesystem::path& to, Unsynced unsynced,
                      Random& random) const;
  void rebuild_file(std::uint64_t number, const std::filesystem::path& to, Unsynced unsynced,
                    Random& random) const;

  std::filesystem::path root_, graves_;
  std::vector<Names> folders_;  // the first is the root
  std::map<std::uint64_t, File> files_;
};

}  // namespace troika::chaos
