// A second opinion on programs, which shares nothing with the validator: it carries them out on
// symbols (hashes of how a value came to be), each rank with a memory of its own, messages without
// tags and without buffers, and compares what forwards, input gradients and weight gradients add up
// to with a plain loop.
#pragma once

#include <gtest/gtest.h>
#include <troika/schedule/schedule.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace troika::testing_support {

using Symbol = std::uint64_t;

inline Symbol mix(Symbol a, Symbol b, Symbol c = 0) {
  Symbol hash = a * 0x9E3779B97F4A7C15U ^ b * 0xC2B2AE3D27D4EB4FU ^ c * 0x165667B19E3779F9U;
  hash ^= hash >> 29;
  hash *= 0xBF58476D1CE4E5B9U;
  return hash ^ (hash >> 32);
}

enum class SlotKind { kInput, kOutput, kOutputGradient, kInputGradient };
using Slot = std::tuple<SlotKind, int, int>;  // of a stage and microbatch

inline Symbol sample(int microbatch) {
  return mix(11, static_cast<Symbol>(microbatch) + 1);
}
inline Symbol forward_of(int stage, Symbol input) {
  return mix(13 + stage, input);
}
inline Symbol loss_gradient(Symbol output) {
  return mix(17, output);
}
inline Symbol input_gradient(int stage, Symbol input, Symbol gradient) {
  return mix(1000 + stage, input, gradient);
}
inline Symbol accumulated(int stage, Symbol sum, Symbol input, Symbol gradient) {
  return mix(sum, mix(2000 + stage, input, gradient));
}

// What each kind of pass has added up to, in its order, by stage.
struct Sums {
  explicit Sums(int stages)
      : forwards(static_cast<std::size_t>(stages), 1), inputs(forwards), weights(forwards) {}
  std::vector<Symbol> forwards, inputs, weights;
  friend bool operator==(const Sums&, const Sums&) = default;
};

// Microbatch after microbatch through the whole model, and back to stage `first`.
inline Sums plain_loop(int stages, int microbatches, int first = 0) {
  Sums sums(stages);
  for (int i = 0; i < microbatches; ++i) {
    std::vector<Symbol> inputs = {sample(i)};
    for (int stage = 0; stage < stages; ++stage) {
      Symbol& sum = sums.forwards[static_cast<std::size_t>(stage)];
      sum = mix(sum, inputs.back());
      inputs.push_back(forward_of(stage, inputs.back()));
    }
    Symbol gradient = loss_gradient(inputs.back());
    for (int stage = stages; stage-- > first;) {
      const auto at = static_cast<std::size_t>(stage);
      sums.weights[at] = accumulated(stage, sums.weights[at], inputs[at], gradient);
      sums.inputs[at] = mix(sums.inputs[at], gradient);
      gradient = input_gradient(stage, inputs[at], gradient);
    }
  }
  return sums;
}

enum class Progress { kMoved, kWaits, kDone, kWrong };

class Execution {
 public:
  explicit Execution(const Schedule& schedule)
      : schedule_(&schedule),
        memory_(schedule.programs.size()),
        at_(schedule.programs.size(), 0),
        in_flight_(schedule.programs.size()),
        sums_(schedule.stages()) {}

  [[nodiscard]] const std::vector<std::size_t>& positions() const { return at_; }

  Progress step(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (at_[r] == schedule_->programs[r].size()) return Progress::kDone;
    const Progress progress = act(rank, schedule_->programs[r][at_[r]]);
    if (progress == Progress::kMoved) ++at_[r];
    return progress;
  }

  // Once every rank is done: the same result as the plain loop, nothing in flight, nothing kept.
  [[nodiscard]] bool right() const {
    for (const Memory& memory : memory_) {
      if (!memory.saved.empty()) return false;
    }
    for (const auto& [ends, channel] : channels_) {
      if (channel.sends.size() != channel.receives.size()) return false;
    }
    return sums_ == plain_loop(schedule_->stages(), schedule_->microbatches,
                               schedule_->first_backward_stage);
  }

 private:
  struct Saved {
    Symbol input = 0;
    Symbol gradient = 0;
    bool has_gradient = false;
  };
  struct Memory {
    std::map<Slot, Symbol> values;
    std::set<Slot> awaited;  // posted receives that nothing has come for
    std::map<std::pair<int, int>, Saved> saved;
  };
  struct Channel {
    std::vector<Symbol> sends;
    std::vector<Slot> receives;
    std::size_t moved = 0;
  };

  [[nodiscard]] int rank_of(int stage) const {
    return schedule_->rank_of_stage[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] bool inside(int stage) const { return stage >= 0 && stage < schedule_->stages(); }

  Progress act(int rank, const ScheduleAction& action) {
    const int source = action.source_stage();
    if (!inside(action.stage) || !inside(source)) return Progress::kWrong;
    if (action.microbatch < 0 || action.microbatch >= schedule_->microbatches) {
      return Progress::kWrong;
    }
    Memory& memory = memory_[static_cast<std::size_t>(rank)];
    const int stage = action.stage;
    const int i = action.microbatch;
    switch (action.kind) {
      case ActionKind::kForward:
        return forward(rank, memory, stage, i);
      case ActionKind::kBackward: {
        const Progress progress = backward(rank, memory, stage, i);
        return progress == Progress::kMoved ? weight(memory, stage, i) : progress;
      }
      case ActionKind::kBackwardInput:
        return backward(rank, memory, stage, i);
      case ActionKind::kBackwardWeight:
        return weight(memory, stage, i);
      case ActionKind::kSendActivation:
        return send(rank, memory, {SlotKind::kOutput, source, i}, rank_of(stage));
      case ActionKind::kSendGradient:
        return send(rank, memory, {SlotKind::kInputGradient, source, i}, rank_of(stage));
      case ActionKind::kReceiveActivation:
        return receive(rank, {SlotKind::kInput, stage, i}, rank_of(source));
      case ActionKind::kReceiveGradient:
        return receive(rank, {SlotKind::kOutputGradient, stage, i}, rank_of(source));
    }
    return Progress::kWrong;
  }

  // kMoved once `slot` has a value.
  static Progress await(const Memory& memory, const Slot& slot) {
    if (memory.values.count(slot) != 0) return Progress::kMoved;
    return memory.awaited.count(slot) != 0 ? Progress::kWaits : Progress::kWrong;
  }

  Progress forward(int rank, Memory& memory, int stage, int i) {
    if (rank_of(stage) != rank) return Progress::kWrong;
    if (stage == 0) memory.values[{SlotKind::kInput, 0, i}] = sample(i);
    const Slot slot = {SlotKind::kInput, stage, i};
    const Progress progress = await(memory, slot);
    if (progress != Progress::kMoved) return progress;
    Symbol& sum = sums_.forwards[static_cast<std::size_t>(stage)];
    sum = mix(sum, memory.values[slot]);
    const Symbol output = forward_of(stage, memory.values[slot]);
    if (stage >= schedule_->first_backward_stage) {
      memory.saved[{stage, i}] = {memory.values[slot], 0, false};
    }
    memory.values[{SlotKind::kOutput, stage, i}] = output;
    if (stage + 1 == schedule_->stages()) {
      memory.values[{SlotKind::kOutputGradient, stage, i}] = loss_gradient(output);
    } else if (rank_of(stage + 1) == rank) {
      memory.values[{SlotKind::kInput, stage + 1, i}] = output;
    }
    return Progress::kMoved;
  }

  Progress backward(int rank, Memory& memory, int stage, int i) {
    const auto saved = memory.saved.find({stage, i});
    if (saved == memory.saved.end()) return Progress::kWrong;
    const Slot slot = {SlotKind::kOutputGradient, stage, i};
    const Progress progress = await(memory, slot);
    if (progress != Progress::kMoved) return progress;
    saved->second.gradient = memory.values[slot];
    saved->second.has_gradient = true;
    Symbol& sum = sums_.inputs[static_cast<std::size_t>(stage)];
    sum = mix(sum, saved->second.gradient);
    const Symbol gradient = input_gradient(stage, saved->second.input, saved->second.gradient);
    memory.values[{SlotKind::kInputGradient, stage, i}] = gradient;
    if (stage > 0 && rank_of(stage - 1) == rank) {
      memory.values[{SlotKind::kOutputGradient, stage - 1, i}] = gradient;
    }
    return Progress::kMoved;
  }

  Progress weight(Memory& memory, int stage, int i) {
    const auto saved = memory.saved.find({stage, i});
    if (saved == memory.saved.end() || !saved->second.has_gradient) return Progress::kWrong;
    Symbol& sum = sums_.weights[static_cast<std::size_t>(stage)];
    sum = accumulated(stage, sum, saved->second.input, saved->second.gradient);
    memory.saved.erase(saved);
    return Progress::kMoved;
  }

  Progress send(int rank, const Memory& memory, const Slot& slot, int to) {
    const auto value = memory.values.find(slot);
    if (value == memory.values.end() || to == rank) return Progress::kWrong;
    auto& in_flight = in_flight_[static_cast<std::size_t>(rank)];
    while (!in_flight.empty() &&
           channels_[{rank, in_flight.front().first}].moved > in_flight.front().second) {
      in_flight.pop_front();
    }
    if (static_cast<int>(in_flight.size()) == schedule_->most_sends()) return Progress::kWaits;
    in_flight.emplace_back(to, channels_[{rank, to}].sends.size());
    channels_[{rank, to}].sends.push_back(value->second);
    move(rank, to);
    return Progress::kMoved;
  }

  Progress receive(int rank, const Slot& slot, int from) {
    if (from == rank) return Progress::kWrong;
    channels_[{from, rank}].receives.push_back(slot);
    memory_[static_cast<std::size_t>(rank)].awaited.insert(slot);
    move(from, rank);
    return Progress::kMoved;
  }

  // Moves the messages that both ends have posted.
  void move(int from, int to) {
    Channel& channel = channels_[{from, to}];
    while (channel.moved < std::min(channel.sends.size(), channel.receives.size())) {
      memory_[static_cast<std::size_t>(to)].values[channel.receives[channel.moved]] =
          channel.sends[channel.moved];
      ++channel.moved;
    }
  }

  const Schedule* schedule_;
  std::vector<Memory> memory_;
  std::vector<std::size_t> at_;
  std::map<std::pair<int, int>, Channel> channels_;
  // By rank: sends that may not have been received, to whom and as which of those to it.
  std::vector<std::deque<std::pair<int, std::size_t>>> in_flight_;
  Sums sums_;
};

// Returns whether the programs do the work of a step, with ranks taking turns.
inline bool works(const Schedule& schedule) {
  Execution execution(schedule);
  for (;;) {
    bool moved = false;
    bool done = true;
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      Progress progress = Progress::kMoved;
      while ((progress = execution.step(rank)) == Progress::kMoved) moved = true;
      if (progress == Progress::kWrong) return false;
      done = done && progress == Progress::kDone;
    }
    if (done) return execution.right();
    if (!moved) return false;
  }
}

struct Verdict {
  bool always = true;      // whatever rank goes first, the work is done
  bool sometimes = false;  // in some order at least
  std::size_t situations = 0;
};

// The same in every order in which ranks can take their steps.
inline Verdict works_in_every_order(const Schedule& schedule) {
  Verdict verdict;
  std::set<std::vector<std::size_t>> seen;
  std::vector<Execution> open = {Execution(schedule)};
  while (!open.empty()) {
    const Execution here = std::move(open.back());
    open.pop_back();
    if (!seen.insert(here.positions()).second) continue;
    ++verdict.situations;
    bool moved = false;
    bool done = true;
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      Execution next = here;
      const Progress progress = next.step(rank);
      done = done && progress == Progress::kDone;
      if (progress == Progress::kWrong) verdict.always = false;
      if (progress != Progress::kMoved) continue;
      moved = true;
      if (seen.count(next.positions()) == 0) open.push_back(std::move(next));
    }
    const bool right = done && here.right();
    verdict.sometimes = verdict.sometimes || right;
    if (!moved && !right) verdict.always = false;
  }
  return verdict;
}

}  // namespace troika::testing_support
