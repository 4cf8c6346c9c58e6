#include <troika/nn/module_tree.h>

#include <utility>

namespace troika {
namespace {

// "a.b.weight" is `weight` of module "a.b".
std::pair<std::string, std::string> split_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace

void ModuleTree::add_parameter(const std::string& name, const at::Tensor& value) {
  const auto [path, own] = split_name(name);
  child(path).register_parameter(own, value);
}

void ModuleTree::add_buffer(const std::string& name, const at::Tensor& value) {
  const auto [path, own] = split_name(name);
  child(path).register_buffer(own, value);
}

torch::nn::Module& ModuleTree::child(const std::string& path) {
  if (path.empty()) return root_;
  const auto found = made_.find(path);
  if (found != made_.end()) return *found->second;
  const auto [before, own] = split_name(path);
  torch::nn::Module& parent = child(before);
  const auto there = parent.named_children();
  if (const auto* const earlier = there.find(own)) return *(made_[path] = *earlier);
  return *(made_[path] = parent.register_module(own, std::make_shared<torch::nn::Module>(own)));
}

}  // namespace troika
