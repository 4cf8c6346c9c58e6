// Writes a small TorchScript file, without Python.
#pragma once

#include <torch/script.h>

#include <filesystem>

namespace troika::test {

// A linear layer, a batch-norm and dropout, over [n, 6] to [n, 3]; "scale" is frozen. In a trace
// dropout stays as it is: `traced` has that.
inline void write_script(const std::filesystem::path& path, double dropout = 0,
                         bool traced = false) {
  const at::TensorOptions options(at::kFloat);
  torch::jit::Module norm("norm"), net("net");
  for (torch::jit::Module* each : {&norm, &net}) {
    each->register_attribute("training", c10::BoolType::get(), true);
  }
  norm.register_parameter("weight", at::ones({4}).requires_grad_(), /*is_buffer=*/false);
  norm.register_parameter("bias", at::full({4}, 0.25).requires_grad_(), false);
  norm.register_buffer("running_mean", at::zeros({4}));
  norm.register_buffer("running_var", at::ones({4}));
  norm.define(R"(
    def forward(self, x, training: bool):
        return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var,
                                training, 0.1, 1e-5, False)
  )");
  net.register_module("norm", norm);
  net.register_parameter("first", at::linspace(-1, 1, 24).view({4, 6}).requires_grad_(), false);
  net.register_parameter("last", at::linspace(-0.5, 1, 12).view({3, 4}).requires_grad_(), false);
  net.register_parameter("scale", at::full({1}, 2.0), false);
  net.register_attribute("dropout", c10::FloatType::get(), dropout);
  net.define(std::string(R"(
    def forward(self, x):
        hidden = self.norm.forward(torch.linear(x, self.first), self.training)
        hidden = torch.dropout(torch.tanh(hidden), self.dropout, )") +
             (traced ? "True" : "self.training") + R"()
        return torch.linear(hidden * self.scale, self.last)
  )");
  net.save(path.string());
}

// Takes x [n, 6] and classes y [n], and returns scores [n, 3], their mean cross-entropy, and how
// many classes count.
inline void write_script_with_loss(const std::filesystem::path& path) {
  torch::jit::Module net("net");
  net.register_parameter("last", at::linspace(-0.5, 1, 18).view({3, 6}).requires_grad_(),
                         /*is_buffer=*/false);
  net.define(R"(
    def forward(self, x, y):
        scores = torch.linear(x, self.last)
        loss = torch.cross_entropy_loss(scores, y)
        return scores, loss, (y != -100).sum()
  )");
  net.save(path.string());
}

// Takes x [n, 3] and two ids below 5, and gives score [n, 1] and hidden [n, 4].
inline void write_script_of_two_inputs(const std::filesystem::path& path) {
  torch::jit::Module net("net");
  const auto add = [&](const char* name, const at::Tensor& value) {
    net.register_parameter(name, value.clone().requires_grad_(), /*is_buffer=*/false);
  };
  add("table", at::linspace(-1, 0.75, 20).view({5, 4}));
  add("read", at::linspace(-1, 1, 12).view({4, 3}));
  add("last", at::linspace(-0.5, 1, 4).view({1, 4}));
  net.define(R"(
    def forward(self, x, ids):
        ids = torch.embedding(self.table, ids)
        hidden = torch.tanh(torch.linear(x, self.read) + ids.sum([1]))
        return torch.linear(hidden, self.last), hidden
  )");
  net.save(path.string());
}

}  // namespace troika::test
