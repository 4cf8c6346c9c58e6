// Mixed precision: parameters in fp32, the forward pass in bf16 or fp16, on GPUs where there are
// some. The argument is the type:
//
//   troika launch --ranks 2 -- own_amp fp16
//
// fp16 has a scale for the loss. A step that it makes overflow, on any rank, is left out on all.
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/nn/autocast.h>
#include <troika/parallel/data_parallel/grad_scaler.h>

#include <iostream>
#include <string>

int main(int argc, char** argv) try {
  const at::ScalarType dtype =
      argc > 1 && std::string(argv[1]) == "fp16" ? at::kHalf : at::kBFloat16;
  const auto session = troika::Session::from_environment({.device = "auto"});
  const at::Device device = session.device();
  torch::manual_seed(1);
  using torch::nn::Linear;
  torch::nn::Sequential net(Linear(8, 256), torch::nn::GELU(), Linear(256, 1));
  net->to(device);
  troika::DataParallel model(net, session);
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  troika::GradScaler scaler(model, {.initial_scale = 1 << 20, .enabled = dtype == at::kHalf});
  model.seed_by_rank(1);  // every rank draws batches of its own
  for (int epoch = 0; epoch < 8; ++epoch) {
    double sum = 0;
    int updates = 0;
    for (int step = 0; step < 32; ++step) {
      const torch::Tensor x = torch::rand({32, 8}).to(device) * 2, y = x.sin().sum(1, true);
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        const troika::Autocast autocast(dtype, device);
        loss = torch::mse_loss(model(x), y);
      }
      scaler.scale(loss).backward();
      scaler.unscale_(optimizer);  // clipping is of gradients as they are
      torch::nn::utils::clip_grad_norm_(net->parameters(), 5.0);
      if (scaler.step(optimizer)) ++updates;
      scaler.update();
      sum += loss.item<double>();
    }
    const double mean = session.average(sum / 32, "loss");
    if (session.rank() != 0) continue;
    std::cout << "epoch " << epoch << ": loss " << mean << ", " << updates
              << " of 32 steps taken, scale " << scaler.scale_value() << std::endl;
  }
  session.leave();
} catch (const troika::Error& error) {
  std::cerr << "own_amp: " << error.what() << std::endl;
  if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << std::endl;
  return static_cast<int>(error.code());
} catch (const std::exception& error) {
  std::cerr << "own_amp: " << error.what() << std::endl;
  return 1;
}
