// Runs the program that a pipeline schedule gives to this rank: forward and backward passes of its
// stages, and the transfers between them. One executor for every schedule, and for none: a pipeline
// of one rank is a program without transfers.
#pragma once

#include <troika/comm/group.h>
#include <troika/nn/stage.h>
#include <troika/observe/trace.h>
#include <troika/schedule/schedule.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct PipelineOptions {
  // As in the recipe: "1f1b", "zb-h1", ...
  std::string schedule = "1f1b";
  // Stages on each rank.
  int virtual_stages = 1;
  // What the tensors between stages are in where they do not say it themselves.
  at::ScalarType type = at::kFloat;
};

// What a pass over the microbatches of a step gave on this rank.
struct PipelineReport {
  LossTerms loss;                  // zero unless the last stage is here
  int peak_stage_activations = 0;  // forward passes whose backward pass was to come, at most
};

class PipelineExecutor {
 public:
  // `stages`: this rank's stages in ascending order, as Schedule::stages_of() numbers them. All
  // ranks of `pipeline` get equal options. `trace` may be null. They must outlive this.
  PipelineExecutor(std::vector<Stage*> stages, Group pipeline, PipelineOptions options,
                   Trace* trace);

  // Whether the last stage of the model, which gives the loss, is on this rank.
  [[nodiscard]] bool has_last_stage() const { return has_last_stage_; }

  // Told the loss as soon as all forward passes of this rank are done, and before its last backward
  // pass.
  using LossHook = std::function<void(const LossTerms& loss)>;
  // Told what the model predicts, [samples, ...], where the last stage is.
  using PredictionHook = std::function<void(const Microbatch&, const at::Tensor& predictions)>;

  // Collective among the ranks of the pipeline, with the same microbatches on each: forward and
  // backward passes, in the schedule's order. Each transfer has `timeout` from when it is posted.
  // Throws DeadlineError, PeerError.
  PipelineReport train(std::span<const Microbatch> microbatches, double loss_scale,
                       UnitHooks& hooks, Seconds timeout, const LossHook& after_forward);
  // The same without backward passes.
  PipelineReport evaluate(std::span<const Microbatch> microbatches, UnitHooks& hooks,
                          Seconds timeout, const PredictionHook& on_prediction = {});

  // What this pipeline's ranks do in a step of so many microbatches, at least one; proven before it
  // is given.
  [[nodiscard]] const Schedule& schedule_for(int microbatches);

 private:
  class Execution;

  std::vector<Stage*> stages_;
  Group pipeline_;
  PipelineOptions options_;
  Trace* trace_;
  bool has_last_stage_;
  std::deque<Schedule> schedules_;  // those in use, by number of microbatches
  std::deque<Schedule> forward_only_;
};

}  // namespace troika
