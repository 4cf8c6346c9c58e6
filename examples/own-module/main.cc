// A small convolutional network with batch-norm, its own loss and torch::optim: an ordinary
// LibTorch program, which the three lines with a number make data-parallel. Started by itself it is
// one rank; under a launcher, be it torchrun, srun or mpirun, it is one of many:
//
//   troika launch --ranks 2 -- own_module
//
// Calls of troika without a number are conveniences.
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>

#include <iostream>
#include <span>
#include <string>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3)))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(8))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3)))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(16))),
        fc(register_module("fc", torch::nn::Linear(16, 4))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(norm1(conv1(x))), 2);
    x = torch::relu(norm2(conv2(x)));
    return fc(x.mean({2, 3}));
  }
  torch::nn::Conv2d conv1;
  // Each rank has statistics of its own; troika::SyncBatchNorm(8, session) has those of all ranks
  // (the own-zero example).
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
  torch::nn::Linear fc;
};
TORCH_MODULE(Net);

// Pictures of noise with one bright quarter, which is to be found.
struct Quarters : torch::data::Dataset<Quarters> {
  torch::data::Example<> get(std::size_t index) override {
    auto generator = at::detail::createCPUGenerator(index);
    torch::Tensor picture = torch::randn({1, 12, 12}, generator);
    const auto quarter = static_cast<std::int64_t>(index % 4);
    picture.narrow(1, 6 * (quarter / 2), 6).narrow(2, 6 * (quarter % 2), 6).add_(1.0);
    return {picture, torch::tensor(quarter)};
  }
  torch::optional<std::size_t> size() const override { return 512; }
};

// A hash of all parameters: runs that computed the same end with the same one.
std::string digest_of(const torch::nn::Module& module) {
  troika::ContentHash hash;
  for (const torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor value = parameter.detach().contiguous();
    hash.update(std::as_bytes(std::span(value.data_ptr<float>(), value.numel())));
  }
  return troika::hex(hash.digest());
}

void train() {
  Net net;
  const auto session = troika::Session::from_environment();  // 1
  troika::DataParallel model(net, session);                  // 2
  model.seed_by_rank(1);  // dropout would draw other masks on each rank
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const troika::DistributedSampler sampler(*Quarters().size(), session);  // 3
  auto loader = torch::data::make_data_loader(Quarters().map(torch::data::transforms::Stack<>()),
                                              sampler, torch::data::DataLoaderOptions(16));
  for (int epoch = 0; epoch < 4; ++epoch) {
    double loss_sum = 0, right = 0, count = 0;
    for (const auto& batch : *loader) {
      optimizer.zero_grad();
      const torch::Tensor output = model(batch.data);
      const torch::Tensor loss = torch::cross_entropy_loss(output, batch.target);
      loss.backward();
      optimizer.step();
      const auto samples = static_cast<double>(batch.data.size(0));
      loss_sum += loss.item<double>() * samples;
      right += (output.argmax(1) == batch.target).sum().item<double>();
      count += samples;
    }
    const auto mean =
        session.average({{"loss", loss_sum / count}, {"accuracy", right / count}}, count);
    if (session.rank() == 0) {
      std::cout << "epoch " << epoch << ": loss " << mean.at("loss") << ", accuracy "
                << mean.at("accuracy") << std::endl;
    }
  }
  if (session.rank() == 0) std::cout << "parameters " << digest_of(*net) << std::endl;
  troika::save_from_rank_0(model, "own-module.pt");  // whole or not at all; torch::load reads it
  session.leave();                                   // no rank ends while others still need it
}

}  // namespace

int main() {
  try {
    torch::manual_seed(1);
    train();
  } catch (const troika::Error& error) {
    std::cerr << "own_module: " << error.what() << std::endl;
    if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << std::endl;
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "own_module: " << error.what() << std::endl;
    return 1;
  }
}
