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
  // The name of the schedule, as in the recipe: "1f1b", "zb-h1", ...
  std::string schedule = "1f1b";
  // The number of stages on each rank.
  int virtual_stages = 1;
  // The type of the tensors between stages that do not give one themselves.
  at::ScalarType type = at::kFloat;
  // The device that stages compute on.
  at::Device device = at::kCPU;
  // The stages before it have no backward pass: nothing in them is trained.
  int first_trained_stage = 0;
};

// The result of a pass over the microbatches of a step on this rank.
struct PipelineReport {
  LossTerms loss;                  // zero unless the last stage is here
  int peak_stage_activations = 0;  // forward passes whose backward pass was to come, at most
};

class PipelineExecutor {
 public:
  // Runs `stages`, this rank's stages in ascending order, as Schedule::stages_of() numbers them.
  // All ranks of `pipeline` get equal options. `trace` may be null. The stages and the trace must
  // outlive this.
  PipelineExecutor(std::vector<Stage*> stages, Group pipeline, PipelineOptions options,
                   Trace* trace);

  // Returns whether the last stage of the model, which gives the loss, is on this rank.
  [[nodiscard]] bool has_last_stage() const { return has_last_stage_; }

  // Receives the loss as soon as all forward passes of this rank are done, and before its last
  // backward pass.
  using LossHook = std::function<void(const LossTerms& loss)>;
  // Receives the predictions of the model, [samples, ...], on the rank of the last stage.
  using PredictionHook = std::function<void(const Microbatch&, const at::Tensor& predictions)>;

  // Runs forward and backward passes in the schedule's order. Collective among the ranks of the
  // pipeline, with the same microbatches on each. Each transfer has `timeout` from when it is
  // posted. Throws DeadlineError, PeerError.
  PipelineReport train(std::span<const Microbatch> microbatches, double loss_scale,
                       UnitHooks& hooks, Seconds timeout, const LossHook& after_forward);
  // Runs the forward passes alone; otherwise as train().
  PipelineReport evaluate(std::span<const Microbatch> microbatches, UnitHooks& hooks,
                          Seconds timeout, const PredictionHook& on_prediction = {});

  // Returns the validated schedule of this pipeline's ranks for a step of so many microbatches, at
  // least one.
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
