#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/file_identity.h>
#include <troika/base/hash.h>
#include <troika/checkpoint/encryption.h>
#include <troika/checkpoint/find_newest.h>

#include <algorithm>

namespace troika {

std::string first_problem(const CheckpointReaders& readers,
                          const std::vector<std::string>& problems) {
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    if (problems.size() == 1) return problems[rank];
    return readers.name_of(static_cast<int>(rank)) + ": " + problems[rank];
  }
  return "";
}

namespace {

// Marks why rank 0 cannot list them, and what lacks its key, behind which its hint follows.
constexpr char kUnreadable = '!';
constexpr char kLacksKey = '?';
constexpr char kHint = '\n';

// What is encrypted with a key that is not given is no damage: to go on from an older one would
// lose what is newer.
void throw_where_a_key_is_missing(const CheckpointReaders& readers,
                                  std::vector<std::string> problems) {
  std::string hint;
  for (std::string& each : problems) {
    if (!each.starts_with(kLacksKey)) {
      each.clear();
      continue;
    }
    const std::size_t end = each.find(kHint);
    if (hint.empty() && end != std::string::npos) hint = each.substr(end + 1);
    each = each.substr(1, end - 1);
  }
  const std::string problem = first_problem(readers, problems);
  if (!problem.empty()) throw MissingKeyError(problem, hint);
}

// The steps on rank 0, or why there are none.
std::vector<std::string> listed(const CheckpointFolder& folder, int rank) {
  std::vector<std::string> steps;
  if (rank > 0) return steps;
  try {
    for (const std::int64_t step : folder.steps()) steps.push_back(std::to_string(step));
  } catch (const DataError& error) {
    steps = {kUnreadable + std::string(error.what())};
  }
  return steps;
}

// Returns what ranks compare of a checkpoint: a digest of its manifest, and what tells this host's
// copy of it from another's. A network's file system gives all hosts the same inode and times.
std::string copy_of(const StateReader& reader, const CheckpointFolder& folder) {
  std::string digest = hex(content_hash(format_manifest(reader.manifest())));
  if (folder.store()) return digest;
  const auto manifest = FileIdentity::of(reader.path() / kManifestFile);
  return manifest ? digest + " " + manifest->version() : digest;
}

std::string digest_of(const std::string& copy) {
  return copy.substr(0, copy.find(' '));
}

// Compares this rank's share of the files of its copy with their SHA-256. `copies` are those of all
// ranks, by rank; empty where a rank could not open its own. Throws DataError.
void verify_copy(StateReader& reader, const CheckpointReaders& readers,
                 const std::vector<std::string>& copies) {
  const auto self = static_cast<std::size_t>(readers.rank);
  const auto first = std::ranges::find_if(copies, [](const auto& each) { return !each.empty(); });
  if (digest_of(*first) != digest_of(copies[self])) {
    throw DataError(shown_path(reader.path()) + " is not the checkpoint that " +
                    readers.name_of(static_cast<int>(first - copies.begin())) +
                    " has by that name: their manifests differ");
  }
  const auto own = copies.begin() + readers.rank;
  reader.verify(static_cast<std::size_t>(std::count(copies.begin(), own, *own)),
                static_cast<std::size_t>(std::ranges::count(copies, *own)));
}

}  // namespace

std::optional<StateReader> open_newest(
    const CheckpointFolder& folder, const CheckpointReaders& readers,
    const std::function<void(std::int64_t step, const std::string& problem)>& on_damaged,
    const std::function<std::string(const Manifest&)>& objection) {
  const std::vector<std::string> steps = listed(folder, readers.rank);
  std::string newest;
  bool all_damaged = true;
  for (std::size_t next = 0;; ++next) {
    // Rank 0 alone lists the folder: ranks that listed it at other moments, or through other
    // caches, could try different steps.
    const std::string told = readers.gather(next < steps.size() ? steps[next] : "").front();
    if (told.starts_with(kUnreadable)) throw DataError(told.substr(1));
    if (told.empty() && next == 0) return std::nullopt;
    if (told.empty()) {
      throw DataError(
          "no checkpoint in " + folder.shown() + " can be used: " + newest,
          all_damaged ? "`troika checkpoint verify` says what is wrong with each; they have to lie "
                        "where all hosts see them"
                      : "--resume goes on from it all the same, --overwrite starts the run again");
    }
    const std::int64_t step = std::stoll(told);
    std::optional<StateReader> reader;
    std::string problem;
    const auto attempt = [&](const auto& read) {
      try {
        if (problem.empty()) read();
      } catch (const MissingKeyError& error) {
        problem = kLacksKey + std::string(error.what()) + kHint + error.hint();
      } catch (const DataError& error) {
        problem = error.what();
      }
    };
    attempt([&] { reader.emplace(folder, step); });
    const std::vector<std::string> copies = readers.gather(reader ? copy_of(*reader, folder) : "");
    attempt([&] { verify_copy(*reader, readers, copies); });
    // A checkpoint counts only where every rank can read it: one that some cannot read is left by
    // all.
    const std::vector<std::string> problems = readers.gather(problem);
    throw_where_a_key_is_missing(readers, problems);
    problem = first_problem(readers, problems);
    // Every rank has read the same manifest, and so has the same objection.
    if (problem.empty() && objection) problem = objection(reader->manifest());
    if (problem.empty()) return reader;
    if (reader && first_problem(readers, problems).empty()) all_damaged = false;
    if (newest.empty()) newest = problem;
    if (readers.rank == 0) on_damaged(step, problem);
  }
}

}  // namespace troika
