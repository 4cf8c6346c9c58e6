// A module that runs its linear layers itself, and can run a pair of LoRA beside one.
#pragma once

namespace troika {

class LoraTargets;

class LoraHost {
 public:
  LoraHost() = default;
  LoraHost(const LoraHost&) = delete;
  LoraHost& operator=(const LoraHost&) = delete;
  virtual ~LoraHost() = default;

  // Shows `targets` the names of its linear layers, and registers a pair, "<layer>.lora_A.weight"
  // [rank, in] and "<layer>.lora_B.weight" [out, rank], for each that it takes.
  virtual void adapt(LoraTargets& targets) = 0;
};

}  // namespace troika
