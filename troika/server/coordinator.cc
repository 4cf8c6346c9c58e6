#include <troika/base/error.h>
#include <troika/server/coordinator.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace troika {

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)), step_(options_.first_step), next_figures_(options_.first_step) {
  check(options_.workers >= 1, "a job of servers without workers");
  figures_ = std::move(options_.figures);
  if (is_synchronous()) return;
  next_part_ = options_.parts_done;
  for (std::int64_t part = 0; part < next_part_; ++part) part_done(part);
}

Coordinator::Worker& Coordinator::worker(int number) {
  const auto found = workers_.find(number);
  if (found == workers_.end()) {
    throw RendezvousError("worker " + std::to_string(number) +
                          " is none of the job any more: it was silent for longer than its lease");
  }
  return found->second;
}

const Coordinator::Worker& Coordinator::worker(int number) const {
  return const_cast<Coordinator*>(this)->worker(number);  // NOLINT: it changes nothing
}

// Others would wait for one that starts from nothing: it begins where the slowest is.
int Coordinator::join(std::int64_t position, double now) {
  Worker added;
  added.position = position;
  added.last_heartbeat = now;
  if (!workers_.empty()) {
    added.finished = std::ranges::min_element(workers_, {}, [](const auto& each) {
                       return each.second.finished;
                     })->second.finished;
  }
  workers_.emplace(next_worker_, added);
  // It stays so: workers that leave later must not stop those that are at work.
  if (std::ssize(workers_) >= options_.workers) begun_ = true;
  return next_worker_++;
}

void Coordinator::record_heartbeat(int number, double now) {
  worker(number).last_heartbeat = now;
}

void Coordinator::remove_worker(int number) {
  const auto found = workers_.find(number);
  if (found == workers_.end()) return;
  const Lost lost{number, found->second.assignment};
  resolve_lost(lost, false);
}

std::vector<Coordinator::Lost> Coordinator::expire(double now) {
  std::vector<Lost> lost;
  for (const auto& [number, each] : workers_) {
    if (now - each.last_heartbeat > options_.lease.count())
      lost.push_back({number, each.assignment, std::isinf(each.last_heartbeat)});
  }
  return lost;
}

void Coordinator::resolve_lost(const Lost& lost, bool applied, const WorkerReport& report) {
  const auto found = workers_.find(lost.worker);
  if (found == workers_.end()) return;
  const Worker gone = found->second;
  workers_.erase(found);
  if (is_synchronous()) {
    // complete_round() and end_round() ask for those alone that have a share of the round.
    if (round_ && !round_->pushed.contains(lost.worker)) round_->gone.insert(lost.worker);
    return;
  }
  if (!gone.assignment) return;
  if (applied) {
    count(figures_[gone.assignment->step], report);
    // Its samples are in the parameters: dealt out again they would count twice.
    part_done(gone.part);
  } else {
    returned_.insert(gone.part);
  }
}

void Coordinator::set_last_step(std::int64_t last_step) {
  check(workers_.empty() && last_step > options_.last_step, "a job of servers that goes on");
  options_.last_step = last_step;
  begun_ = false;
}

bool Coordinator::is_idle() const {
  if (round_) return false;
  return std::ranges::none_of(
             workers_, [](const auto& each) { return each.second.assignment.has_value(); }) &&
         returned_.empty();
}

std::int64_t Coordinator::first_sample_of(std::int64_t step) const {
  return options_.first_ordinal + (step - options_.first_step) * options_.global_batch_size;
}

std::int64_t Coordinator::step_of_part(std::int64_t part) const {
  return options_.first_step + part / options_.workers;
}

std::int64_t Coordinator::all_parts() const {
  return (options_.last_step - options_.first_step + 1) * options_.workers;
}

Assignment Coordinator::assignment_of_part(std::int64_t part) const {
  Assignment assignment;
  assignment.step = step_of_part(part);
  assignment.samples =
      even_split(options_.global_batch_size, part % options_.workers, options_.workers);
  assignment.samples.first += first_sample_of(assignment.step);
  return assignment;
}

void Coordinator::open_round() {
  round_.emplace();
  for (const auto& [number, each] : workers_) {
    if (!each.leaves) round_->workers.push_back(number);
  }
  std::ranges::sort(round_->workers, {},
                    [this](int number) { return std::pair(workers_.at(number).position, number); });
}

std::optional<Assignment> Coordinator::start_in_round(int number) {
  if (step_ > options_.last_step) return std::nullopt;
  if (!round_) {
    if (paused_) return std::nullopt;
    open_round();
  }
  const auto found = std::ranges::find(round_->workers, number);
  if (found == round_->workers.end() || !round_->started.insert(number).second) return std::nullopt;
  Assignment assignment;
  assignment.step = step_;
  assignment.samples = even_split(options_.global_batch_size, found - round_->workers.begin(),
                                  std::ssize(round_->workers));
  assignment.samples.first += first_sample_of(step_);
  return assignment;
}

std::optional<Assignment> Coordinator::start_part(int number) {
  // Parts of lost workers are dealt out even while it is paused: it is idle only once none is left.
  if (paused_ && returned_.empty()) return std::nullopt;
  Worker& own = worker(number);
  if (options_.staleness) {
    std::int64_t slowest = own.finished;
    for (const auto& [other, each] : workers_) slowest = std::min(slowest, each.finished);
    // The worker itself is among those compared, so that the slowest never waits for another and
    // the job goes on.
    if (slowest < own.finished - *options_.staleness) return std::nullopt;
  }
  if (!returned_.empty()) {
    own.part = *returned_.begin();
    returned_.erase(returned_.begin());
  } else if (next_part_ < all_parts()) {
    own.part = next_part_++;
  } else {
    return std::nullopt;
  }
  return assignment_of_part(own.part);
}

bool Coordinator::may_leave(int number) {
  Worker& own = worker(number);
  own.leaves = true;
  const bool has_share = round_ && std::ranges::count(round_->workers, number) > 0;
  return !own.assignment && !has_share;
}

std::optional<Assignment> Coordinator::try_start(int number) {
  Worker& own = worker(number);
  if (own.assignment) return own.assignment;  // it asks again
  if (!begun_) return std::nullopt;
  own.assignment = is_synchronous() ? start_in_round(number) : start_part(number);
  if (!own.assignment) return std::nullopt;
  own.assignment->turn = ++own.turns;
  own.assignment->workers = std::ssize(workers_);
  return own.assignment;
}

bool Coordinator::is_over() const {
  if (is_synchronous()) return step_ > options_.last_step;
  return parts_finished_ >= all_parts();
}

void Coordinator::count(StepFigures& figures, const WorkerReport& report) const {
  figures.loss += report.loss;
  figures.weight += report.weight;
  figures.valid += report.valid;
  if (!report.skipped.empty()) figures.skipped = report.skipped;
  if (is_synchronous() || !report.skipped.empty()) return;
  figures.norm += report.norm * report.norm;
  ++figures.updates;
  ++figures.staleness[report.staleness];
}

void Coordinator::part_done(std::int64_t part) {
  ++parts_finished_;
  ++parts_of_step_[step_of_part(part)];
}

void Coordinator::finish(int number, std::int64_t turn, const WorkerReport& report) {
  Worker& own = worker(number);
  // A repeated report must not count twice: the turn says which assignment it is of.
  if (!own.assignment || own.assignment->turn != turn) return;  // told twice
  // Before the round is looked at: a push that has come again completes it.
  own.again = false;
  if (is_synchronous()) {
    if (round_) round_->pushed.emplace(number, report);
    return;  // resolved with the round
  }
  count(figures_[own.assignment->step], report);
  part_done(own.part);
  ++own.finished;
  own.assignment.reset();
}

void Coordinator::push_again(int number) {
  if (const auto found = workers_.find(number); found != workers_.end()) {
    found->second.again = true;
  } else if (round_ && round_->pushed.erase(number) > 0) {
    round_->gone.insert(number);
  }
}

std::optional<Coordinator::Round> Coordinator::complete_round() const {
  if (!round_) return std::nullopt;
  Round round{step_, {}, 0, 0, {}};
  for (const int number : round_->workers) {
    if (round_->gone.contains(number)) continue;
    const auto report = round_->pushed.find(number);
    if (report == round_->pushed.end()) return std::nullopt;
    const auto found = workers_.find(number);
    if (found != workers_.end() && found->second.again) return std::nullopt;
    round.workers.push_back(number);
    round.weight += report->second.weight;
    round.learning_rate = report->second.learning_rate;
    if (!report->second.skipped.empty()) round.skipped = report->second.skipped;
  }
  return round;
}

void Coordinator::end_round(double norm, const std::string& skipped) {
  check(round_.has_value(), "the end of a step that no worker is at");
  StepFigures& figures = figures_[step_];
  for (const auto& [number, report] : round_->pushed) count(figures, report);
  figures.norm = norm;
  if (!skipped.empty()) figures.skipped = skipped;
  std::int64_t position = 0;
  bool any = false;
  for (const int number : round_->workers) {
    const std::int64_t samples =
        even_split(options_.global_batch_size, position++, std::ssize(round_->workers)).count;
    if (round_->gone.contains(number)) {
      figures.lost_samples += samples;
      continue;
    }
    any = true;
    const auto found = workers_.find(number);
    if (found == workers_.end()) continue;
    ++found->second.finished;
    found->second.assignment.reset();
    found->second.is_applied = skipped.empty();
  }
  round_.reset();
  if (!any) {  // all were lost: the step is taken again
    figures_.erase(step_);
    return;
  }
  if (figures.skipped.empty()) {
    figures.updates = 1;
    figures.staleness[0] = 1;
  }
  ++step_;
}

bool Coordinator::is_complete(std::int64_t step) const {
  if (is_synchronous()) return step < step_;
  const auto parts = parts_of_step_.find(step);
  return step < next_figures_ ||
         (parts != parts_of_step_.end() && parts->second >= options_.workers);
}

std::optional<StepFigures> Coordinator::take_figures() {
  const std::int64_t step = next_figures_;
  if (!is_complete(step)) return std::nullopt;
  StepFigures figures = figures_[step];
  figures.step = step;
  if (!is_synchronous() && figures.updates > 0) {
    figures.norm = std::sqrt(figures.norm / static_cast<double>(figures.updates));
  }
  if (figures.updates > 0) figures.skipped.clear();
  figures_.erase(step);
  parts_of_step_.erase(step);
  ++next_figures_;
  return figures;
}

std::vector<int> Coordinator::workers() const {
  std::vector<int> numbers;
  for (const auto& [number, each] : workers_) numbers.push_back(number);
  return numbers;
}

// A worker that reports a turn once more may have its next one.
bool Coordinator::is_turn_over(int number, std::int64_t turn) const {
  const std::optional<Assignment>& assignment = worker(number).assignment;
  return !assignment || assignment->turn > turn;
}

bool Coordinator::has_to_push_again(int number) const {
  return worker(number).again;
}

bool Coordinator::is_applied(int number) const {
  return worker(number).is_applied;
}

}  // namespace troika
