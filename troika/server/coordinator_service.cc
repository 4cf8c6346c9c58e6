#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/observe/log.h>
#include <troika/rendezvous/agreement.h>
#include <troika/rendezvous/environment.h>
#include <troika/server/coordinator_service.h>
#include <troika/server/data_comparison.h>
#include <troika/server/messages.h>
#include <troika/server/round_update.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

namespace troika {

using messages::Json;

namespace {

// A worker that waits for longer asks again, so that a connection that is gone is noticed.
constexpr Seconds kLongestAnswer(2);
constexpr Seconds kLook(0.2);

double now() {
  return Seconds(Clock::now().time_since_epoch()).count();
}

RpcMessage reply(const Json& json) {
  return {json.dump(), {}, {}};
}

// Throws DataError where a worker reads other files of the model than the job: all hold the same
// values, which servers send, but such a file may also say how the model computes.
void check_model_files(const Json& request, const std::map<std::string, std::string>& own) {
  if (own.empty()) return;
  const auto theirs = messages::value<std::map<std::string, std::string>>(request, "model_files");
  for (const auto& [title, digest] : own) {
    const auto found = theirs.find(title);
    if (found != theirs.end() && found->second == digest) continue;
    throw DataError(title + " has other contents on host " +
                        messages::value<std::string>(request, "host") +
                        ", where a worker joins, than on host " +
                        Environment::of_process().host().name + ", where the job's coordinator is",
                    "copy the same files to every host, or read them from a folder that all share");
  }
}

}  // namespace

std::string new_run_name() {
  std::random_device device;
  std::string name;
  for (int i = 0; i < 4; ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    for (std::uint32_t bits = device(), k = 0; k < 8; ++k, bits >>= 4U) name += kDigits[bits & 15U];
  }
  return name;
}

CoordinatorService::CoordinatorService(CoordinatorServiceOptions options, ShardClients& shards)
    : options_(std::move(options)),
      shards_(shards),
      coordinator_(options_.coordinator),
      wanted_step_(options_.coordinator.first_step - 1),
      next_timed_(options_.coordinator.first_step),
      fetched_step_(options_.coordinator.first_step - 1),
      complete_at_(now()) {}

void CoordinatorService::time_steps() {
  std::int64_t end = next_timed_;
  while (coordinator_.is_complete(end)) ++end;
  if (end == next_timed_) return;
  // Of steps that one push has completed none has taken no time.
  const double time = now();
  const double each = (time - complete_at_) / static_cast<double>(end - next_timed_);
  complete_at_ = time;
  for (; next_timed_ < end; ++next_timed_) {
    completions_[next_timed_] = {each, std::ssize(coordinator_.workers())};
    if (options_.is_watched) continue;
    static_cast<void>(coordinator_.take_figures());
    completions_.clear();
  }
}

RpcMessage CoordinatorService::answer(const RpcRequest& request) {
  if (request.method == "join") return join(request);
  if (request.method == "turn") return turn(request);
  const Json json = messages::parse(request.header, request.method);
  check_run(messages::value<std::string>(json, "run"));
  // Without the lock: they may look at many files.
  const CoordinatorData data(options_.data);
  if (request.method == "data" && data.is_compared()) return data.excerpt(json);
  if (request.method == "contents" && data.is_compared()) {
    const Json answer = data.compare_contents(json);
    const std::lock_guard lock(mutex_);
    if (answer.value("state", "") == "same") {
      uncompared_.erase(messages::value<int>(json, "worker"));
    }
    return reply(answer);
  }
  if (request.method == "refused" && data.is_compared()) {
    std::optional<int> worker;
    if (json.contains("worker")) worker = messages::value<int>(json, "worker");
    refuse(messages::value<std::string>(json, "reason"),
           messages::value<std::int64_t>(json, "place"), worker);
    return reply(Json::object());
  }
  const auto worker = messages::value<int>(json, "worker");
  const std::lock_guard lock(mutex_);
  if (request.method == "beat") {
    // A refused worker is alive until it has said why.
    if (!refused_.contains(worker)) coordinator_.record_heartbeat(worker, now());
  } else if (request.method == "leave") {
    coordinator_.remove_worker(worker);
    changed_.notify_all();
  } else if (request.method == "fail") {
    drop(worker);
  } else {
    throw DataError("a coordinator knows no '" + request.method + "'");
  }
  return reply(Json::object());
}

// One of a job that has ended may have a number that is another's in this one.
void CoordinatorService::check_run(const std::string& run) const {
  if (run != options_.run) throw RendezvousError("a worker is of another run than the job");
}

RpcMessage CoordinatorService::join(const RpcRequest& request) {
  const Json json = messages::parse(request.header, request.method);
  if (const auto version = messages::value<std::string>(json, "version");
      version != options_.version) {
    throw UsageError("a worker runs troika " + version + ", and the job " + options_.version,
                     "install the same version on all hosts");
  }
  if (const auto recipe = messages::value<std::string>(json, "recipe"); recipe != options_.recipe) {
    throw UsageError("a worker has another recipe than the job: " +
                         first_difference(options_.recipe, recipe, "in the job", "in the worker"),
                     "start all with the same recipe file and the same --set");
  }
  const auto position = messages::value<std::int64_t>(json, "place");
  check_model_files(json, options_.model_files);
  const CoordinatorData data(options_.data);
  if (const auto refusal = data.refusal(json, options_.run)) return reply(*refusal);
  Json joined = {{"run", options_.run}};
  const bool is_uncompared = data.add_to_reply(joined, json);
  const std::lock_guard lock(mutex_);
  const int worker = coordinator_.join(position, now());
  if (is_uncompared) {
    // One that has lost its place joins as another, and what it has pushed is still there.
    decltype(uncompared_)::node_type before;
    if (json.contains("before") &&
        messages::value<std::string>(json, "before_run") == options_.run) {
      before = uncompared_.extract(messages::value<int>(json, "before"));
    }
    uncompared_[worker] = before.empty() ? DataDoubt::kNever : before.mapped();
  }
  joined["worker"] = worker;
  changed_.notify_all();
  return reply(joined);
}

void CoordinatorService::drop(int worker) {
  // The assignment is resolved as that of a worker whose lease is over, and without its wait.
  coordinator_.record_heartbeat(worker, -std::numeric_limits<double>::infinity());
  // finish() waits for all workers to leave, and resolves none.
  if (is_over_) coordinator_.remove_worker(worker);
  changed_.notify_all();
}

void CoordinatorService::refuse(const std::string& reason, std::int64_t position,
                                std::optional<int> worker) {
  const std::lock_guard lock(mutex_);
  std::string what = "; it may not join";
  if (worker) {
    what = "; the job goes on without it";
    const auto first = uncompared_.extract(*worker);
    if (!first.empty() && first.mapped() != DataDoubt::kNever) {
      doubt_.certain = std::min(doubt_.certain, first.mapped());
      if (doubt_.reason.empty()) doubt_.reason = reason;
      what += ", and marks its checkpoints from step " + std::to_string(first.mapped()) + " on";
    }
  }
  // The job would wait for one that it was started with.
  if (position < options_.coordinator.workers) return fail(options_.data->error(reason));
  log_warning(reason + what);
  if (!worker || std::ranges::count(coordinator_.workers(), *worker) == 0) return;
  refused_.insert(*worker);
  drop(*worker);
}

void CoordinatorService::note_pass(int worker, const Assignment& assignment) {
  const auto found = uncompared_.find(worker);
  if (found == uncompared_.end() || found->second != DataDoubt::kNever) return;
  // Synchronous: a step's push is in the values from that step on. Otherwise it is in those that
  // are fetched next: of the step that the keeper has seen last, or of the one after it where
  // these have been fetched.
  found->second = options_.coordinator.staleness == 0 ? assignment.step
                                                      : std::max(wanted_step_, fetched_step_ + 1);
}

DataDoubt CoordinatorService::doubt() const {
  const std::lock_guard lock(mutex_);
  DataDoubt doubt = doubt_;
  for (const auto& [worker, first] : uncompared_) doubt.possible = std::min(doubt.possible, first);
  return doubt;
}

RpcMessage CoordinatorService::turn(const RpcRequest& request) {
  const Json json = messages::parse(request.header, request.method);
  check_run(messages::value<std::string>(json, "run"));
  const auto worker = messages::value<int>(json, "worker");
  const bool reports = json.contains("report");
  const std::int64_t reported = reports ? messages::value<std::int64_t>(json, "turn") : 0;
  const bool leaves = json.contains("leaves");
  const Deadline deadline = Deadline::in(kLongestAnswer);
  Lock lock(mutex_);
  coordinator_.record_heartbeat(worker, now());
  if (reports) {
    coordinator_.finish(worker, reported, messages::report_of(json.at("report")));
    time_steps();
    changed_.notify_all();
  }
  const auto over = [&] {
    return reply({{"state", "over"}, {"applied", coordinator_.is_applied(worker)}});
  };
  for (;;) {
    proceed(lock);
    if (failure_) std::rethrow_exception(failure_);
    coordinator_.record_heartbeat(worker, now());  // or it is none any more
    if (coordinator_.has_to_push_again(worker)) return reply({{"state", "again"}});
    if (is_over_ || coordinator_.is_over()) return over();
    // What it has pushed may not be applied yet.
    const bool is_turn_over = reports && coordinator_.is_turn_over(worker, reported);
    if (leaves && coordinator_.may_leave(worker)) {
      RpcMessage last = over();
      coordinator_.remove_worker(worker);
      changed_.notify_all();
      return last;
    }
    if (!reports || is_turn_over) {
      if (const auto assignment = coordinator_.try_start(worker)) {
        note_pass(worker, *assignment);
        return reply({{"state", "samples"},
                      {"samples", messages::json_of(*assignment)},
                      {"applied", coordinator_.is_applied(worker)}});
      }
    }
    if (deadline.passed()) return reply({{"state", "wait"}});
    changed_.wait_for(lock, std::min(kLook, deadline.left()));
  }
}

void CoordinatorService::proceed(Lock& lock) {
  if (Clock::now() - opened_ > options_.start_timeout) coordinator_.begin_anyway();
  // busy_ stands for the lock while servers are asked: heartbeats come in meanwhile, but no second
  // thread resolves or applies the same.
  if (busy_ || failure_) return;
  try {
    resolve_lost(lock);
    drive_round(lock);
  } catch (...) {
    // The error may have come while servers were asked, without the lock.
    if (!lock.owns_lock()) lock.lock();
    busy_ = false;
    fail(std::current_exception());
  }
}

void CoordinatorService::fail(const std::exception_ptr& error) {
  // The first failure is the cause; workers that it ends report others.
  if (!failure_) failure_ = error;
  changed_.notify_all();
}

void CoordinatorService::log_lost(const Coordinator::Lost& lost) const {
  log_warning("worker " + std::to_string(lost.worker) +
              (lost.has_failed ? " has failed"
                               : " has been silent for " +
                                     format_fixed(options_.coordinator.lease.count(), 0) + " s") +
              ": the job goes on without it");
}

void CoordinatorService::resolve_lost(Lock& lock) {
  const std::vector<Coordinator::Lost> lost = coordinator_.expire(now());
  if (lost.empty()) return;
  busy_ = true;
  for (const Coordinator::Lost& each : lost) {
    const bool is_refused = refused_.erase(each.worker) > 0;
    lock.unlock();
    if (!is_refused) log_lost(each);
    // Fenced on all servers before the samples are dealt out again: a late push of the silent
    // worker would be applied beside that of the worker who gets them.
    const RpcMessage message{Json({{"run", options_.run}, {"worker", each.worker}}).dump(), {}, {}};
    bool applied = false;
    WorkerReport report;
    for (const RpcReply& answer :
         shards_.call_all("fence", std::vector(static_cast<std::size_t>(shards_.size()), message),
                          Deadline::in(options_.timeout))) {
      const Json json = messages::parse(answer.header, "fence");
      if (!each.assignment || messages::value<std::int64_t>(json, "turn") < each.assignment->turn) {
        continue;
      }
      const std::int64_t staleness = report.staleness;
      report = messages::report_of(
          messages::parse(messages::value<std::string>(json, "report"), "fence"));
      report.staleness = std::max(staleness, messages::value<std::int64_t>(json, "staleness"));
      // One server is enough. A push goes to all at once, and the part that another server has
      // missed is lost: trained on again, its samples would count twice here.
      applied = true;
    }
    lock.lock();
    // Even where the worker has been heard of since: it is fenced, and learns with its next call
    // that it has to join again.
    coordinator_.resolve_lost(each, applied, report);
    // What it has pushed to a step that is not complete is left out of it.
    if (is_refused) coordinator_.push_again(each.worker);
    time_steps();
  }
  busy_ = false;
  changed_.notify_all();
}

void CoordinatorService::drive_round(Lock& lock) {
  const auto round = coordinator_.complete_round();
  if (!round) return;
  if (options_.is_watched && round->step > wanted_step_ && !round->workers.empty()) return;
  busy_ = true;
  lock.unlock();
  const Applied applied = apply(*round);
  lock.lock();
  busy_ = false;
  // Before the round ends: one whose gradients are missing stays open.
  for (const int worker : applied.missing) coordinator_.push_again(worker);
  if (applied.missing.empty()) coordinator_.end_round(applied.norm, applied.skipped);
  time_steps();
  changed_.notify_all();
}

CoordinatorService::Applied CoordinatorService::apply(const Coordinator::Round& round) {
  Applied applied;
  if (round.workers.empty()) return applied;
  applied.skipped = round.skipped;
  if (applied.skipped.empty() && !(round.weight > 0))
    applied.skipped = "none of its targets counts";
  if (!applied.skipped.empty()) return applied;
  const auto to_all = [&](const char* method, Json json) {
    json["run"] = options_.run;
    json["step"] = round.step;
    const RpcMessage message{json.dump(), {}, {}};
    return shards_.call_all(method, std::vector(static_cast<std::size_t>(shards_.size()), message),
                            Deadline::in(options_.timeout));
  };
  double squares = 0;
  // All servers sum before any applies: where a gradient is missing on one of them, none has moved
  // on to the next step.
  for (const RpcReply& answer : to_all("sum", {{"workers", round.workers}})) {
    const Json json = messages::parse(answer.header, "sum");
    squares += messages::number_of(json, "squares");
    const auto missing = messages::value<std::vector<int>>(json, "missing");
    applied.missing.insert(applied.missing.end(), missing.begin(), missing.end());
  }
  if (!applied.missing.empty()) return applied;
  const RoundUpdate update = round_update(round.step, squares, round.weight,
                                          {options_.grad_clip, options_.skips_nonfinite});
  applied.norm = update.norm;
  applied.skipped = update.skipped;
  if (!applied.skipped.empty()) return applied;
  const double rate =
      options_.learning_rate ? options_.learning_rate(round.step) : round.learning_rate;
  const Json how = {{"lr", rate}, {"scale", update.scale}};
  for (const RpcReply& answer : to_all("apply", how)) {
    // It has died since, and gets the gradients again; the others have applied them.
    if (messages::value<bool>(messages::parse(answer.header, "apply"), "lost")) {
      applied.missing = round.workers;
    }
  }
  return applied;
}

std::string CoordinatorService::describe_workers() const {
  const std::vector<int> workers = coordinator_.workers();
  if (workers.empty()) return "no worker is there";
  std::vector<std::string> names;
  for (const int worker : workers) names.push_back(std::to_string(worker));
  return std::string(workers.size() == 1 ? "worker " : "workers ") + troika::join(names, ", ") +
         (workers.size() == 1 ? " is there" : " are there");
}

RemoteStep CoordinatorService::wait_for_step() {
  Lock lock(mutex_);
  const std::int64_t step = ++wanted_step_;
  changed_.notify_all();
  const bool is_first = step == options_.coordinator.first_step;
  const Deadline deadline =
      Deadline::in(options_.patience * options_.timeout + options_.coordinator.lease +
                   (is_first ? options_.start_timeout : Seconds(0)));
  for (;;) {
    proceed(lock);
    if (failure_) std::rethrow_exception(failure_);
    time_steps();  // some may have been complete from the start
    if (auto figures = coordinator_.take_figures()) {
      RemoteStep told;
      told.step = figures->step;
      told.loss = figures->loss;
      told.weight = figures->weight;
      told.valid = figures->valid;
      told.norm = figures->norm;
      told.updates = figures->updates;
      told.staleness = std::move(figures->staleness);
      told.workers = completions_[told.step].workers;
      told.seconds = completions_[told.step].seconds;
      told.lost_samples = figures->lost_samples;
      told.skipped = std::move(figures->skipped);
      completions_.erase(told.step);
      return told;
    }
    if (deadline.passed()) {
      throw DeadlineError("step " + std::to_string(step) + " is not complete after " +
                              format_fixed(deadline.timeout().count(), 0) +
                              " s: " + describe_workers(),
                          "look at what the workers printed last, or raise comm.timeout_seconds");
    }
    changed_.wait_for(lock, std::min(kLook, deadline.left()));
  }
}

CoordinatorService::Done CoordinatorService::pause(std::int64_t step) {
  Lock lock(mutex_);
  coordinator_.pause();
  const Deadline deadline =
      Deadline::in(options_.patience * options_.timeout + options_.coordinator.lease);
  // Of a synchronous step that nobody has asked for, nothing is applied.
  if (options_.coordinator.staleness == 0) return {};
  while (!coordinator_.is_idle()) {
    proceed(lock);
    if (failure_) std::rethrow_exception(failure_);
    if (deadline.passed()) {
      throw DeadlineError("workers are still at their samples after " +
                          format_fixed(deadline.timeout().count(), 0) +
                          " s: " + describe_workers());
    }
    changed_.wait_for(lock, std::min(kLook, deadline.left()));
  }
  fetched_step_ = step;
  const std::int64_t steps = step + 1 - options_.coordinator.first_step;
  return {coordinator_.parts_done() - steps * options_.coordinator.workers, coordinator_.figures()};
}

void CoordinatorService::resume() {
  const std::lock_guard lock(mutex_);
  coordinator_.resume();
  changed_.notify_all();
}

void CoordinatorService::set_last_step(std::int64_t last_step) {
  const std::lock_guard lock(mutex_);
  coordinator_.set_last_step(last_step);
  opened_ = Clock::now();
}

void CoordinatorService::finish() {
  Lock lock(mutex_);
  // Workers hear of it at their next turn, and the servers have to stay until the last of them has
  // left.
  is_over_ = true;
  changed_.notify_all();
  const Deadline deadline =
      Deadline::in(options_.patience * options_.timeout + options_.coordinator.lease);
  while (!coordinator_.workers().empty() && !deadline.passed()) {
    changed_.wait_for(lock, std::min(kLook, deadline.left()));
  }
  const auto trained = std::ranges::count_if(
      uncompared_, [](const auto& each) { return each.second != DataDoubt::kNever; });
  if (trained == 0) return;
  log_warning("the job has ended before the contents of the data of " + plural(trained, "worker") +
              " had been compared with its own");
}

}  // namespace troika
