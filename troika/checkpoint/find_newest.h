// Finds the newest checkpoint that is whole, on all ranks together.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/checkpoint/state_reader.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troika {

// The ranks that look for it together.
struct CheckpointReaders {
  int rank = 0;
  int size = 1;
  // Collective: returns the texts of all ranks, by rank. Ranks come at their own pace: each has
  // read files before.
  std::function<std::vector<std::string>(const std::string& text)> gather;
  // Returns "rank 1 on host b", for messages.
  std::function<std::string(int rank)> name_of;
};

// Collective: opens the newest checkpoint whose files are there and have their SHA-256. The ranks
// that see the same files divide them; where hosts have copies of their own, each compares its own,
// and all copies have to be of the same checkpoint. Returns nothing where rank 0 sees none.
// `on_damaged` hears of each that is not used, on rank 0. `objection` returns why a checkpoint that
// is whole is not to be used, or an empty text. Throws DataError on every rank where there are
// some, and none can be used; MissingKeyError where the newest that could be read lacks its key.
[[nodiscard]] std::optional<StateReader> open_newest(
    const CheckpointFolder& folder, const CheckpointReaders& readers,
    const std::function<void(std::int64_t step, const std::string& problem)>& on_damaged,
    const std::function<std::string(const Manifest&)>& objection = {});

// Returns the first of all ranks' problems, with its rank; empty where there is none.
[[nodiscard]] std::string first_problem(const CheckpointReaders& readers,
                                        const std::vector<std::string>& problems);

}  // namespace troika
