#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/checkpoint/background_commit.h>
#include <troika/observe/log.h>

#include <random>
#include <utility>

namespace troika::detail {
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
                                   std::int64_t keep, Seconds timeout)
    : folder_(std::move(folder)),
      session_(Session::on(session.world(), timeout)),
      keep_(keep),
      timeout_(timeout),
      attempt_(attempt_of(session)),
      writer_(folder_.key()) {
  const bool has_store = session.size() > 1 && !session.members().empty();
  if (has_store) store_.emplace(session.store().clone());
}

std::string BackgroundCommit::key(const std::string& what) const {
  return "checkpoint/" + save_name() + "/" + what;
}

std::string BackgroundCommit::save_name() const {
  return attempt_ + "-" + std::to_string(saves_);
}

void BackgroundCommit::begin(std::int64_t step, const StateDict& state, Metadata provenance) {
  check(!is_under_way_, "two checkpoints at once");
  ++saves_;
  manifest_ = {};
  manifest_.step = step;
  manifest_.numbers = state.numbers();
  manifest_.provenance = std::move(provenance);
  writer_.begin(state, folder_.step_folder(step),
                shard_file_name(session_.rank(), session_.size(), save_name()));
  is_under_way_ = true;
  const bool needs_caller = session_.size() > 1 && !store_;
  if (needs_caller) return;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void BackgroundCommit::run(const std::stop_token& stop) {
  try {
    const std::string own = format_report(writer_.wait());
    const std::vector<std::string> reports = exchange(own, stop);
    problem_ = tell(session_.rank() == 0 ? commit(reports) : "", stop);
  } catch (const std::exception& error) {
    problem_ = error.what();
  }
}

std::string BackgroundCommit::wait_for(const std::string& key, const std::stop_token& stop) {
  const Deadline deadline = Deadline::in(timeout_);
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
    reports.push_back(wait_for(key(std::to_string(rank)), stop));
  }
  return reports;
}

std::string BackgroundCommit::tell(const std::string& own, const std::stop_token& stop) {
  if (!store_) return own;
  if (session_.rank() > 0) return wait_for(key("end"), stop);
  store_->set(key("end"), own);
  return own;
}

std::string BackgroundCommit::commit(const std::vector<std::string>& reports) {
  try {
    Manifest manifest = manifest_;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      const ShardReport report = parse_report(reports[rank], "a rank's report");
      if (!report.error.empty()) return "rank " + std::to_string(rank) + ": " + report.error;
      manifest.tensors.insert(report.tensors.begin(), report.tensors.end());
      if (!report.shard.file.empty()) manifest.shards.push_back(report.shard);
    }
    folder_.commit(manifest);
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
    folder_.remove_old(manifest.step, keep_);
  } catch (const std::exception& error) {
    warning_ = "older checkpoints stay: " + std::string(error.what());
  }
}

std::string BackgroundCommit::finish() {
  if (!std::exchange(is_under_way_, false)) return "";
  if (thread_.joinable()) {
    thread_.join();
    if (!warning_.empty()) log_warning(std::exchange(warning_, {}));
    return std::exchange(problem_, {});
  }
  const std::vector<std::string> reports =
      session_.gather(format_report(writer_.wait()), "files of a checkpoint");
  std::string problem =
      session_.gather(session_.rank() == 0 ? commit(reports) : "", "checkpoint").front();
  if (!warning_.empty()) log_warning(std::exchange(warning_, {}));
  return problem;
}

}  // namespace troika::detail
