#include <troika/base/units.h>
#include <troika/observe/progress.h>

#include <algorithm>
#include <cmath>

namespace troika {
namespace {

constexpr int kBarWidth = 24;

// From the pace of `done` so far. Empty as long as nothing is done, and at the end.
std::string time_left(Seconds spent, std::int64_t done, std::int64_t remaining) {
  if (done <= 0 || remaining <= 0) return "";
  const double pace = spent.count() / static_cast<double>(done);
  const double seconds = std::max(1.0, std::round(pace * static_cast<double>(remaining)));
  // Tenths of a second would only flicker.
  return (seconds < 60 ? format_fixed(seconds, 0) + " s" : format_duration(seconds)) + " left";
}

std::string describe(const Evaluation& evaluation) {
  const auto bits = evaluation.held_out_bits_per_byte;
  std::string text = bits ? "held-out " + format_fixed(*bits, 3) + " bits/byte"
                          : "held-out loss " + format_fixed(evaluation.held_out_loss, 4);
  for (const NamedValue& each : evaluation.metrics) {
    text += " " + each.name + " " + format_fixed(each.value, 4);
  }
  return text;
}

// "device 9.1 GiB"; empty for a run on the host.
std::string device_memory(const StepMetrics& metrics) {
  const auto found = std::ranges::find(metrics.extras, kDeviceReservedBytes, &NamedValue::name);
  if (found == metrics.extras.end()) return "";
  return "device " + format_bytes(static_cast<std::uint64_t>(found->value));
}

}  // namespace

StepProgress::StepProgress(std::ostream& output, std::int64_t total_steps, std::string unit,
                           ProgressOptions options)
    : line_(output, std::move(options)), total_(total_steps), unit_(std::move(unit)) {}

void StepProgress::update(const StepMetrics& metrics) {
  if (!last_) {
    first_step_ = metrics.step;
    first_at_ = line_.now();
  }
  last_ = metrics;
  if (metrics.evaluation) evaluation_ = metrics.evaluation;
  shown_ = false;
  if (line_.due()) draw();
}

void StepProgress::finish() {
  if (last_ && !shown_) draw();
  line_.end_line();
}

void StepProgress::draw() {
  const std::int64_t remaining = total_ - last_->step;
  std::string left = time_left(line_.now() - first_at_, last_->step - first_step_, remaining);
  if (left.empty()) left = time_left(Seconds(last_->step_seconds), 1, remaining);
  line_.draw({"step " + std::to_string(last_->step) + "/" + std::to_string(total_),
              "loss " + (std::isfinite(last_->loss) ? format_fixed(last_->loss, 4) : "not finite"),
              format_rate(last_->tokens_per_second, unit_), left,
              evaluation_ ? describe(*evaluation_) : "", device_memory(*last_)});
  shown_ = true;
}

CountProgress::CountProgress(std::ostream& output, std::string what, std::string unit,
                             std::int64_t total, ProgressOptions options)
    : line_(output, std::move(options)),
      what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      start_(line_.now()) {}

void CountProgress::add(std::int64_t count) {
  const std::lock_guard lock(mutex_);
  count_ += count;
  if (line_.due()) draw();
}

void CountProgress::finish() {
  const std::lock_guard lock(mutex_);
  if (count_ != shown_) draw();
  line_.end_line();
}

std::string CountProgress::bar() const {
  const double share = std::min(
      1.0, static_cast<double>(count_) / static_cast<double>(std::max<std::int64_t>(1, total_)));
  const int filled = static_cast<int>(share * kBarWidth);
  std::string text(static_cast<std::size_t>(kBarWidth), ' ');
  std::fill_n(text.begin(), filled, '=');
  if (filled < kBarWidth) text[static_cast<std::size_t>(filled)] = '>';
  const std::string percent = std::to_string(static_cast<int>(share * 100));
  return " [" + text + "] " + std::string(3 - percent.size(), ' ') + percent + " %";
}

void CountProgress::draw() {
  const Seconds spent = line_.now() - start_;
  const auto done = static_cast<double>(count_);
  const bool in_place = line_.options().style == ProgressStyle::kTerminal;
  const std::string total =
      total_ > 0 ? "/" + format_count(static_cast<double>(total_)) : std::string();
  line_.draw({what_ + (total_ > 0 && in_place ? bar() : ""),
              format_count(done) + total + " " + unit_,
              spent.count() > 0 ? format_rate(done / spent.count(), unit_) : "",
              time_left(spent, count_, total_ - count_)});
  shown_ = count_;
}

}  // namespace troika
