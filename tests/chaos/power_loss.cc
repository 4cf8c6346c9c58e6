#include <sys/stat.h>

#include <chaos/power_loss.h>
#include <algorithm>
#include <fstream>
#include <stdexcept>

namespace troika::chaos {

namespace fs = std::filesystem;

PowerLoss::PowerLoss(fs::path root, fs::path graves)
    : root_(std::move(root)), graves_(std::move(graves)) {
  scan(root_);
}

std::uint64_t PowerLoss::scan(const fs::path& folder) {
  const std::uint64_t index = folders_.size();
  folders_.emplace_back();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    Entry found;
    if (entry.is_directory()) {
      found = {Entry::Kind::kFolder, scan(entry.path())};
    } else {
      struct stat status {};
      if (::stat(entry.path().c_str(), &status) != 0) throw std::logic_error("stat");
      found = {Entry::Kind::kFile, status.st_ino};
      const auto size = static_cast<std::uint64_t>(status.st_size);
      files_[status.st_ino] = {size, size, {}, false, true};
      fs::create_hard_link(entry.path(), graves_ / std::to_string(status.st_ino));
    }
    folders_[index][entry.path().filename().string()] = {found};
  }
  return index;
}

std::uint64_t PowerLoss::folder_at(const fs::path& path) const {
  std::uint64_t index = 0;
  const fs::path below = path.lexically_relative(root_);
  if (below == ".") return index;
  for (const fs::path& part : below) {
    const auto found = folders_[index].find(part.string());
    if (found == folders_[index].end() || found->second.back().kind != Entry::Kind::kFolder) {
      throw std::logic_error("no folder " + path.string());
    }
    index = found->second.back().number;
  }
  return index;
}

std::vector<PowerLoss::Entry>& PowerLoss::history_of(const fs::path& path) {
  std::vector<Entry>& history = folders_[folder_at(path.parent_path())][path.filename().string()];
  if (history.empty()) history.emplace_back();  // it was not there
  return history;
}

void PowerLoss::replay(const Record& record) {
  for (int i = 0; i < record.operations_count; ++i) apply(record.operations[i]);
}

void PowerLoss::apply(const Operation& operation) {
  switch (operation.kind) {
    case Kind::kMakeFolder:
      folders_.emplace_back();
      history_of(operation.path).push_back({Entry::Kind::kFolder, folders_.size() - 1});
      return;
    case Kind::kCreate:
      files_[operation.file] = {};
      history_of(operation.path).push_back({Entry::Kind::kFile, operation.file});
      return;
    case Kind::kWrite:
      return write(operation);
    case Kind::kSync:
      return sync(operation.file);
    case Kind::kSyncFailed:
      files_.at(operation.file).is_lost = true;
      return;
    case Kind::kSyncFolder:
      return sync_names(operation.path);
    case Kind::kRename: {
      const Entry moved = history_of(operation.path).back();
      history_of(operation.to).push_back(moved);
      history_of(operation.path).emplace_back();
      return;
    }
    case Kind::kRemove:
    case Kind::kRemoveFolder:
      history_of(operation.path).emplace_back();
      return;
    case Kind::kClose:
    case Kind::kOpen:
      return;
    case Kind::kOther:
      break;
  }
  throw std::logic_error("a change that is not known: " + std::string(operation.path));
}

void PowerLoss::write(const Operation& operation) {
  File& file = files_.at(operation.file);
  if (file.was_there) throw std::logic_error("in place: " + std::string(operation.path));
  const std::uint64_t end = operation.begin + operation.count;
  file.size = std::max(file.size, end);
  file.unsynced.push_back({operation.begin, end});
}

void PowerLoss::sync(std::uint64_t number) {
  File& file = files_.at(number);
  if (file.is_lost) return;
  file.synced_size = file.size;
  file.unsynced.clear();
}

void PowerLoss::sync_names(const fs::path& folder) {
  for (auto& [name, history] : folders_[folder_at(folder)]) history = {history.back()};
}

void PowerLoss::rebuild(const fs::path& to, Unsynced unsynced, std::uint64_t seed) const {
  Random random(seed);
  rebuild_folder(0, to, unsynced, random);
}

void PowerLoss::rebuild_folder(std::uint64_t index, const fs::path& to, Unsynced unsynced,
                               Random& random) const {
  fs::create_directory(to);
  for (const auto& [name, history] : folders_[index]) {
    Entry entry = history.front();
    if (unsynced == Unsynced::kTorn) entry = history[random() % history.size()];
    if (entry.kind == Entry::Kind::kFolder) {
      rebuild_folder(entry.number, to / name, unsynced, random);
    } else if (entry.kind == Entry::Kind::kFile) {
      rebuild_file(entry.number, to / name, unsynced, random);
    }
  }
}

void PowerLoss::rebuild_file(std::uint64_t number, const fs::path& to, Unsynced unsynced,
                             Random& random) const {
  const File& file = files_.at(number);
  const fs::path content = graves_ / std::to_string(number);
  if (file.unsynced.empty()) {
    fs::create_hard_link(content, to);
    return;
  }
  fs::copy_file(content, to);
  const bool is_torn = unsynced == Unsynced::kTorn;
  const std::uint64_t more = file.size - file.synced_size;
  fs::resize_file(to, file.synced_size + (is_torn ? random() % (more + 1) : 0));
  const std::uint64_t size = fs::file_size(to);
  constexpr std::uint64_t kPage = 4096;
  const std::string zeros(kPage, '\0');
  std::fstream out(to, std::ios::in | std::ios::out | std::ios::binary);
  for (const Range& range : file.unsynced) {
    for (std::uint64_t at = range.begin; at < std::min(range.end, size);) {
      const std::uint64_t end = std::min({(at / kPage + 1) * kPage, range.end, size});
      const bool is_kept = is_torn && random() % 2 == 0;
      if (!is_kept) {
        out.seekp(static_cast<std::streamoff>(at));
        out.write(zeros.data(), static_cast<std::streamsize>(end - at));
      }
      at = end;
    }
  }
}

}  // namespace troika::chaos
