// Data-parallel training on GPUs of a network of one's own: one rank a GPU, on one host or many.
// Where there are no GPUs it runs on the CPU.
//
//   troika launch --ranks 2 -- own_gpu          every rank takes a GPU of its host
//   troika launch --ranks 2 -- own_gpu cuda:0   both share one
#include <torch/torch.h>
#include <troika/device/device_error.h>
#include <troika/parallel/data_parallel/data_parallel.h>

#include <iostream>

void train(const troika::Session& session, at::Device device) {
  torch::manual_seed(1);
  using namespace torch::nn;
  Sequential net(Conv2d(Conv2dOptions(1, 16, 3)), BatchNorm2d(16), ReLU(), AdaptiveAvgPool2d(1),
                 Flatten(), Linear(16, 4));
  net->to(device);
  troika::DataParallel model(net, session);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  torch::manual_seed(100 + session.rank());  // every rank draws batches of its own
  for (int epoch = 0; epoch < 4; ++epoch) {
    torch::Tensor sum = torch::zeros({}, device);
    for (int step = 0; step < 16; ++step) {
      // Stripes of one of four widths, which is to be told.
      const torch::Tensor width = torch::randint(0, 4, {32});
      const torch::Tensor waves = torch::arange(16) * (0.5 + width.unsqueeze(1) * 0.5);
      const torch::Tensor x = waves.sin().view({32, 1, 1, 16}).expand({32, 1, 16, 16}).contiguous();
      optimizer.zero_grad();
      const torch::Tensor loss = torch::cross_entropy_loss(model(x.to(device)), width.to(device));
      loss.backward();
      optimizer.step();
      sum += loss.detach();  // on the device: nothing waits for it here
    }
    const double mean = session.average(sum.item<double>() / 16, "loss");
    if (session.rank() == 0) std::cout << "epoch " << epoch << ": loss " << mean << std::endl;
  }
  std::cout << "rank " << session.rank() << " computed on " << device << std::endl;
}

int main(int argc, char** argv) try {
  const auto session = troika::Session::from_environment({.device = argc > 1 ? argv[1] : "auto"});
  try {
    train(session, session.device());
  } catch (const c10::Error& error) {  // LibTorch's: of a device that is full, or has failed
    const auto shown = troika::device_error(error, session.device());
    if (!shown) throw;
    session.abort(shown->what());  // for the ranks that wait for this one
    throw troika::Error(*shown);
  }
  session.leave();
} catch (const troika::Error& error) {
  std::cerr << "own_gpu: " << error.what() << std::endl;
  if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << std::endl;
  return static_cast<int>(error.code());
} catch (const std::exception& error) {
  std::cerr << "own_gpu: " << error.what() << std::endl;
  return 1;
}
