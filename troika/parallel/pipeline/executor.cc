#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/parallel/pipeline/executor.h>
#include <troika/schedule/generate.h>
#include <troika/schedule/validate.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace troika {
namespace {

const Schedule* find_schedule(const std::deque<Schedule>& schedules, int microbatches) {
  const auto found = std::ranges::find(schedules, microbatches, &Schedule::microbatches);
  return found == schedules.end() ? nullptr : &*found;
}

}  // namespace

// One pass of the program. What lies between two actions is kept by stage and microbatch.
class PipelineExecutor::Execution {
 public:
  Execution(PipelineExecutor& executor, const Schedule& schedule,
            std::span<const Microbatch> microbatches, UnitHooks& hooks, Seconds timeout)
      : executor_(executor),
        schedule_(schedule),
        own_stages_(schedule.stages_of(executor.pipeline_.rank())),
        microbatches_(microbatches),
        hooks_(hooks),
        timeout_(timeout),
        inputs_(cells_of(schedule)),
        gradients_(cells_of(schedule)),
        saved_(cells_of(schedule)) {}

  PipelineReport train(double loss_scale, const LossHook& after_forward) {
    loss_scale_ = loss_scale;
    return run(Mode::kTrain, after_forward);
  }

  PipelineReport evaluate(const PredictionHook& on_prediction) {
    on_prediction_ = on_prediction;
    return run(Mode::kEvaluate, {});
  }

 private:
  PipelineReport run(Mode mode, const LossHook& after_forward) {
    mode_ = mode;
    const Program& program =
        schedule_.programs[static_cast<std::size_t>(executor_.pipeline_.rank())];
    forwards_left_ = std::ranges::count(program, ActionKind::kForward, &ScheduleAction::kind);
    for (const ScheduleAction& action : program) {
      execute(action);
      if (action.kind != ActionKind::kForward || --forwards_left_ > 0) continue;
      if (after_forward) after_forward(report_.loss);
    }
    while (!pending_sends_.empty()) finish_oldest_send();
    return report_;
  }

  // Tensors that are here, or on their way.
  struct Arrival {
    Tensors tensors;
    Work work;
  };
  struct PendingSend {
    Tensors tensors;
    Work work;
  };

  void execute(const ScheduleAction& action) {
    switch (action.kind) {
      case ActionKind::kForward:
        return forward(action);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        return backward(action);
      case ActionKind::kBackwardWeight:
        return backward_weight(action);
      case ActionKind::kSendActivation:
        return send(action, take(inputs_, action));
      case ActionKind::kSendGradient:
        return send(action, take(gradients_, action));
      case ActionKind::kReceiveActivation:
        return receive(action, inputs_, stage(action).inputs(microbatch(action)), Flow::kForward);
      case ActionKind::kReceiveGradient:
        return receive(action, gradients_, stage(action).outputs(microbatch(action)),
                       Flow::kBackward);
    }
  }

  void forward(const ScheduleAction& action) {
    Tensors input = action.stage > 0 ? take(inputs_, action) : Tensors();
    const Span span(executor_.trace_, Track::kForward, span_name(action));
    Saved& saved = saved_[cell_of(schedule_, action)].emplace();
    saved.microbatch = microbatch(action);
    saved.microbatch.stage = action.stage;
    saved.mode = mode_;
    saved.loss_scale = loss_scale_;
    saved.wants_predictions = static_cast<bool>(on_prediction_);
    hooks_.begin_pass(action.microbatch, action.stage);
    Activation output = stage(action).forward({std::move(input)}, saved, hooks_);
    if (is_last(action.stage)) {
      report_.loss.add(output.loss);
      if (on_prediction_ && !output.tensors.empty())
        on_prediction_(saved.microbatch, output.tensor());
    } else {
      inputs_[cell_of(schedule_, action.stage + 1, action.microbatch)] = {std::move(output.tensors),
                                                                          {}};
    }
    if (action.stage < schedule_.first_backward_stage) {
      saved_[cell_of(schedule_, action)].reset();
    } else {
      report_.peak_stage_activations = std::max(report_.peak_stage_activations, ++alive_);
    }
  }

  void backward(const ScheduleAction& action) {
    Tensors gradients = is_last(action.stage) ? Tensors() : take(gradients_, action);
    const Span span(executor_.trace_, Track::kBackward, span_name(action));
    Saved& saved = saved_of(action);
    const bool whole = action.kind == ActionKind::kBackward;
    hooks_.begin_pass(action.microbatch, action.stage);
    gradients = whole ? stage(action).backward(saved, std::move(gradients), hooks_)
                      : stage(action).backward_input(saved, std::move(gradients), hooks_);
    if (action.stage > schedule_.first_backward_stage) {
      gradients_[cell_of(schedule_, action.stage - 1, action.microbatch)] = {std::move(gradients),
                                                                             {}};
    }
    if (whole) release(action);
  }

  void backward_weight(const ScheduleAction& action) {
    const Span span(executor_.trace_, Track::kBackward, span_name(action));
    hooks_.begin_pass(action.microbatch, action.stage);
    stage(action).backward_weight(saved_of(action), hooks_);
    release(action);
  }

  void release(const ScheduleAction& action) {
    saved_[cell_of(schedule_, action)].reset();
    --alive_;
  }

  void send(const ScheduleAction& action, Tensors tensors) {
    if (microbatch(action).samples() == 0) return;
    while (!pending_sends_.empty() && pending_sends_.front().work.done()) finish_oldest_send();
    if (std::ssize(pending_sends_) == schedule_.most_sends()) finish_oldest_send();
    std::erase_if(tensors, [](const at::Tensor& each) { return !each.defined(); });
    for (at::Tensor& each : tensors) each = each.contiguous();
    pending_sends_.push_back({tensors, exchange(action, Transfer::Direction::kSend, tensors)});
  }

  void finish_oldest_send() {
    pending_sends_.front().work.wait();
    pending_sends_.pop_front();
  }

  // Of what crosses a cut; backward only some of it has a gradient, and the rest stays undefined.
  enum class Flow { kForward, kBackward };
  void receive(const ScheduleAction& action, std::vector<std::optional<Arrival>>& arrivals,
               const std::vector<FlowSpec>& specs, Flow flow) {
    if (microbatch(action).samples() == 0) {
      arrivals[cell_of(schedule_, action)].emplace();
      return;
    }
    Tensors tensors, received;
    for (const FlowSpec& spec : specs) {
      at::Tensor& tensor = tensors.emplace_back();
      if (flow == Flow::kBackward && !spec.carries_gradient) continue;
      tensor = at::empty(spec.shape, at::TensorOptions(spec.type.value_or(executor_.options_.type))
                                         .device(executor_.options_.device));
      received.push_back(tensor);
    }
    arrivals[cell_of(schedule_, action)] = {
        std::move(tensors), exchange(action, Transfer::Direction::kReceive, received)};
  }

  [[nodiscard]] Work exchange(const ScheduleAction& action, Transfer::Direction direction,
                              const Tensors& tensors) const {
    std::vector<Transfer> transfers;
    for (const at::Tensor& each : tensors) {
      transfers.push_back({direction, schedule_.peer(action), each});
    }
    return executor_.pipeline_.exchange(transfers, {describe(action), Deadline::in(timeout_)});
  }

  // Waits for them if they are on their way.
  [[nodiscard]] Tensors take(std::vector<std::optional<Arrival>>& arrivals,
                             const ScheduleAction& action) const {
    std::optional<Arrival>& arrival = arrivals[cell_of(schedule_, action)];
    check(arrival.has_value(), "an action of the schedule uses what is not there");
    arrival->work.wait();
    Tensors tensors = std::move(arrival->tensors);
    arrival.reset();
    return tensors;
  }

  [[nodiscard]] Stage& stage(const ScheduleAction& action) const {
    const auto place = std::ranges::find(own_stages_, action.stage);
    check(place != own_stages_.end(), "an action of a stage that another rank has");
    return *executor_.stages_[static_cast<std::size_t>(place - own_stages_.begin())];
  }
  [[nodiscard]] const Microbatch& microbatch(const ScheduleAction& action) const {
    return microbatches_[static_cast<std::size_t>(action.microbatch)];
  }
  [[nodiscard]] Saved& saved_of(const ScheduleAction& action) {
    std::optional<Saved>& saved = saved_[cell_of(schedule_, action)];
    check(saved.has_value(), "a backward pass without its forward pass");
    return *saved;
  }
  [[nodiscard]] bool is_last(int stage) const { return stage + 1 == schedule_.stages(); }
  // Only where a trace is on.
  [[nodiscard]] std::string span_name(const ScheduleAction& action) const {
    return executor_.trace_ != nullptr && executor_.trace_->on() ? describe(action) : "";
  }

  PipelineExecutor& executor_;
  const Schedule& schedule_;
  std::vector<int> own_stages_;
  std::span<const Microbatch> microbatches_;
  UnitHooks& hooks_;
  Seconds timeout_;
  Mode mode_ = Mode::kTrain;
  double loss_scale_ = 1;
  PredictionHook on_prediction_;
  std::vector<std::optional<Arrival>> inputs_;     // of a stage
  std::vector<std::optional<Arrival>> gradients_;  // of a stage's output
  std::vector<std::optional<Saved>> saved_;
  std::deque<PendingSend> pending_sends_;
  std::int64_t forwards_left_ = 0;
  int alive_ = 0;
  PipelineReport report_;
};

PipelineExecutor::PipelineExecutor(std::vector<Stage*> stages, Group pipeline,
                                   PipelineOptions options, Trace* trace)
    : stages_(std::move(stages)),
      pipeline_(std::move(pipeline)),
      options_(std::move(options)),
      trace_(trace),
      has_last_stage_(false) {
  check(std::ssize(stages_) == options_.virtual_stages,
        "a pipeline rank without one of its virtual stages");
  const Schedule smallest =
      make_schedule(options_.schedule, {pipeline_.size(), options_.virtual_stages, 1});
  has_last_stage_ = smallest.rank_of_stage.back() == pipeline_.rank();
}

const Schedule& PipelineExecutor::schedule_for(int microbatches) {
  if (const Schedule* known = find_schedule(schedules_, microbatches)) return *known;
  Schedule schedule =
      make_schedule(options_.schedule, {pipeline_.size(), options_.virtual_stages, microbatches});
  validate(schedule);
  if (options_.first_trained_stage > 0) {
    schedule = without_backward_before(std::move(schedule), options_.first_trained_stage);
  }
  schedules_.push_back(std::move(schedule));
  return schedules_.back();
}

PipelineReport PipelineExecutor::train(std::span<const Microbatch> microbatches, double loss_scale,
                                       UnitHooks& hooks, Seconds timeout,
                                       const LossHook& after_forward) {
  if (microbatches.empty()) {
    if (after_forward) after_forward({});
    return {};
  }
  const Schedule& schedule = schedule_for(static_cast<int>(microbatches.size()));
  return Execution(*this, schedule, microbatches, hooks, timeout).train(loss_scale, after_forward);
}

PipelineReport PipelineExecutor::evaluate(std::span<const Microbatch> microbatches,
                                          UnitHooks& hooks, Seconds timeout,
                                          const PredictionHook& on_prediction) {
  if (microbatches.empty()) return {};
  const int count = static_cast<int>(microbatches.size());
  const Schedule* schedule = find_schedule(forward_only_, count);
  if (schedule == nullptr) {
    const Schedule& whole = schedule_for(count);
    forward_only_.push_back(without_backward_before(whole, whole.stages()));
    schedule = &forward_only_.back();
  }
  return Execution(*this, *schedule, microbatches, hooks, timeout).evaluate(on_prediction);
}

}  // namespace troika
