// A tree of modules that is made of the dotted names of its tensors. Internal: implementation files
// include it.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>

namespace troika {

// Registers tensors in a module and in children of it that it makes, so that they have the names
// that Python gives them.
class ModuleTree {
 public:
  explicit ModuleTree(torch::nn::Module& root) : root_(root) {}

  // Registers a tensor as "a.b.weight": as `weight` of module "a.b".
  void add_parameter(const std::string& name, const at::Tensor& value);
  void add_buffer(const std::string& name, const at::Tensor& value);

 private:
  [[nodiscard]] torch::nn::Module& child(const std::string& path);

  torch::nn::Module& root_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> made_;
};

}  // namespace troika
