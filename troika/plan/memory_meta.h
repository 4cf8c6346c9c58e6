// Runs a model on tensors without memory: shapes and types go through the very code that trains,
// and only sizes are counted. Internal to the prediction of memory.
#pragma once

#include <memory>

namespace troika {

// While one is alive, every tensor that this thread makes is a meta tensor, which has a shape but
// no memory, and is counted by tensor_memory(kMeta). Operators for which LibTorch has no meta
// version outside of Python get one, with the temporary memory of their CPU version. One
// at a time in a process.
class MetaTensors {
 public:
  MetaTensors();
  ~MetaTensors();
  MetaTensors(const MetaTensors&) = delete;
  MetaTensors& operator=(const MetaTensors&) = delete;

 private:
  class Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace troika
