#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/checkpoint/background_commit.h>
#include <troika/observe/log.h>
#include <troika/session/rank_name.h>

#include <chrono>
#include <random>
#include <utility>

namespace troika {
namespace {

// How long the thread waits before it looks whether it is still wanted.
constexpr Seconds kSlice{0.2};

// No two starts of a program have the same.
std::string attempt_of(const Session& session) {
  std::random_device random;
  const std::uint64_t own = std::uint64_t{random()} << 32U | random();
  return session.gather(hex(own), "attempt").front().substr(0, 8);
}

}  // namespace

BackgroundCommit::BackgroundCommit(CheckpointFolder folder, const Session& session,
                                   CommitSettings settings)
    : folder_(std::move(folder)),
      members_(session.members()),
      session_(Session::on(session.world(), settings.timeout)),
      settings_(std::move(settings)),
      attempt_(attempt_of(session)),
      writer_(folder_.key()) {
  const bool has_store = session.size() > 1 && !members_.empty();
  if (has_store) store_.emplace(session.store().clone());
}

std::string BackgroundCommit::key(const std::string& what) const {
  return "checkpoint/" + save_name() + "/" + what;
}

std::string BackgroundCommit::save_name() const {
  return attempt_ + "-" + std::to_string(saves_);
}

std::string BackgroundCommit::name_of(std::size_t rank) const {
  if (session_.size() == 1) return "";
  return name_of_rank(static_cast<int>(rank), members_) + ": ";
}

void BackgroundCommit::begin(const StateDict& state, Manifest manifest, std::uint64_t most_copied) {
  check(!is_under_way_, "two checkpoints at once");
  ++saves_;
  manifest_ = std::move(manifest);
  manifest_.numbers = state.numbers();
  writer_.begin(state, folder_.step_folder(manifest_.step),
                shard_file_name(session_.rank(), session_.size(), save_name()), most_copied);
  is_under_way_ = true;
  const bool needs_caller = session_.size() > 1 && !store_;
  if (needs_caller) return;
  std::promise<void> written, end;
  file_written_ = written.get_future();
  ended_ = end.get_future();
  thread_ = std::jthread([this, written = std::move(written),
                          end = std::move(end)](const std::stop_token& stop) mutable {
    run(std::move(written), stop);
    end.set_value();
  });
}

void BackgroundCommit::run(std::promise<void> written, const std::stop_token& stop) {
  try {
    const std::string own = format_report(writer_.wait());
    written.set_value();
    const std::vector<std::string> reports = exchange(own, stop);
    problem_ = share_outcome(session_.rank() == 0 ? commit(reports) : "", stop);
  } catch (const std::exception& error) {
    problem_ = error.what();
  }
}

// A key that is set counts even where nobody waits any more: where all files are there, a rank 0
// that ends still commits them.
std::string BackgroundCommit::wait_for(const std::string& key, const std::stop_token& stop) {
  const Deadline deadline = Deadline::in(settings_.timeout);
  while (!store_->wait({key}, Deadline::in(kSlice))) {
    if (stop.stop_requested()) throw StorageError("a checkpoint was left before it was there");
    if (deadline.passed()) {
      throw StorageError("other ranks have not written their files in time");
    }
  }
  return store_->get(key, deadline);
}

std::vector<std::string> BackgroundCommit::exchange(const std::string& own,
                                                    const std::stop_token& stop) {
  if (!store_) return {own};
  if (session_.rank() > 0) {
    store_->set(key(std::to_string(session_.rank())), own);
    return {};
  }
  std::vector<std::string> reports = {own};
  for (int rank = 1; rank < session_.size(); ++rank) {
    const std::string name = key(std::to_string(rank));
    reports.push_back(wait_for(name, stop));
    store_->set(name, "");  // a long run would fill the store with reports that nobody reads again
  }
  return reports;
}

std::string BackgroundCommit::share_outcome(const std::string& own, const std::stop_token& stop) {
  if (!store_) return own;
  if (session_.rank() > 0) return wait_for(key("end"), stop);
  // Also where it has failed: the other ranks wait for this key.
  store_->set(key("end"), own);
  return own;
}

std::string BackgroundCommit::commit(const std::vector<std::string>& reports) {
  try {
    Manifest manifest = manifest_;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      const ShardReport report = parse_report(reports[rank], "a rank's report");
      if (!report.error.empty()) return name_of(rank) + report.error;
      manifest.tensors.insert(report.tensors.begin(), report.tensors.end());
      if (!report.shard.file.empty()) manifest.shards.push_back(report.shard);
    }
    if (settings_.check) settings_.check();
    if (settings_.before) settings_.before(manifest.step);
    // After all files are written, synced and named: the manifest is what makes them a checkpoint.
    // A run that has lost its folder in a store must not commit to it, so it looks again as late as
    // can be.
    folder_.commit(manifest, settings_.check);
    (void)folder_.read(manifest.step);  // what is there, before what was there is removed
    remove_old(manifest);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// The new one is there, whatever becomes of the others.
void BackgroundCommit::remove_old(const Manifest& manifest) {
  try {
    folder_.remove_unnamed(manifest);
    folder_.remove_old(manifest.step, settings_.keep,
                       settings_.also_keep ? settings_.also_keep() : std::vector<std::int64_t>());
  } catch (const std::exception& error) {
    warnings_.push_back("older checkpoints stay: " + std::string(error.what()));
  }
  try {
    if (settings_.after) settings_.after(manifest.step);
  } catch (const std::exception& error) {
    warnings_.push_back(error.what());
  }
}

bool BackgroundCommit::is_done() const {
  if (!is_under_way_) return true;
  return ended_.valid() && ended_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void BackgroundCommit::wait_until_done(const Deadline& deadline) const {
  if (is_under_way_ && ended_.valid()) (void)ended_.wait_for(deadline.left());
}

void BackgroundCommit::log_warnings() {
  for (const std::string& warning : std::exchange(warnings_, {})) log_warning(warning);
}

std::string BackgroundCommit::take_problem() {
  if (!thread_.joinable() || !is_done()) return "";
  thread_.join();
  log_warnings();
  return std::exchange(problem_, {});
}

std::string BackgroundCommit::finish() {
  if (!std::exchange(is_under_way_, false)) return "";
  if (ended_.valid()) {
    // The group notices a rank that dies meanwhile, and the store does not.
    file_written_.wait();
    session_.barrier("files of a checkpoint");
    ended_.wait();
    return take_problem();
  }
  const std::vector<std::string> reports =
      session_.gather(format_report(writer_.wait()), "files of a checkpoint");
  std::string problem =
      session_.gather(session_.rank() == 0 ? commit(reports) : "", "checkpoint").front();
  log_warnings();
  return problem;
}

}  // namespace troika
