// Which device a rank computes on: by default that of its local rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace troika {

// The place of a rank among those of its host.
struct HostPosition {
  int rank = 0;
  int size = 1;
  // True if the launcher shows each rank devices of its own alone, as Slurm does with
  // --gpus-per-task.
  bool devices_are_own = false;
};

// Returns why `word` names no device, as a sentence's end; empty if it does. The words are "auto",
// "cpu", "cuda", or another of LibTorch's device types, with a number ("cuda:1") or without.
[[nodiscard]] std::string device_refusal(std::string_view word);

// Returns the number of devices of a type that this process can use. Loads the plug-in for CUDA to
// count its devices.
[[nodiscard]] int device_count(at::DeviceType type);

// Returns how many ranks of a host take a device each by `word`. A kind gives as many as there are
// of it, "auto" as many as there are GPUs. One device by its number gives 1, and the host 0.
[[nodiscard]] int ranks_with_a_device(std::string_view word);

// Returns why "auto" takes the CPU on a host that has GPUs, in one line; empty where it takes GPUs,
// where the driver shows none, or for any other word. Loads the plug-in for CUDA.
[[nodiscard]] std::string reason_for_cpu(std::string_view word, HostPosition place);

// Returns the device that `word` stands for on this rank. "auto" is a CUDA device where there is
// one for every rank of the host, else the CPU. A word with a number is that device, on every rank
// of the host. Throws UsageError naming `key`, which has set the word, where there is no such
// device, or none for each rank.
[[nodiscard]] at::Device choose_device(std::string_view word, HostPosition place,
                                       const std::string& key);

}  // namespace troika
