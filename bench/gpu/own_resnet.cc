// A residual network of bottlenecks (He et al. 2015) of torch::nn in troika::DataParallel, in bf16
// by autocast: troika's side of the work resnet50 of `make bench-gpu`. peers/resnet.py is the same
// in PyTorch. Prints one line of JSON. Arguments are KEY=VALUE, as gpu.py gives them to both.
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/nn/autocast.h>
#include <troika/parallel/data_parallel/data_parallel.h>

#include <chrono>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace torch::nn;
using Words = std::map<std::string, std::string>;

Sequential convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                       std::int64_t stride) {
  const auto options = Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2);
  return Sequential(Conv2d(Conv2dOptions(options).bias(false)), BatchNorm2d(out));
}

// 1x1, 3x3 and 1x1, around which the input passes; the last widens four times.
struct BottleneckImpl : Module {
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
      : first(register_module("first", convolution(in, width, 1, 1))),
        second(register_module("second", convolution(width, width, 3, stride))),
        third(register_module("third", convolution(width, 4 * width, 1, 1))) {
    if (stride == 1 && in == 4 * width) return;
    shortcut = register_module("shortcut", convolution(in, 4 * width, 1, stride));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor inner = first->forward(x).relu_();
    const torch::Tensor output = third->forward(second->forward(inner).relu_());
    return (output + (shortcut.is_empty() ? x : shortcut->forward(x))).relu_();
  }
  Sequential first, second, third, shortcut{nullptr};
};
TORCH_MODULE(Bottleneck);

struct ResnetImpl : Module {
  ResnetImpl(const std::vector<std::int64_t>& blocks, std::int64_t width, std::int64_t classes) {
    stem = register_module("stem", convolution(3, width, 7, 2));
    std::int64_t channels = width;
    for (std::size_t group = 0; group < blocks.size(); ++group) {
      for (std::int64_t block = 0; block < blocks[group]; ++block) {
        body->push_back(Bottleneck(channels, width << group, block == 0 && group > 0 ? 2 : 1));
        channels = 4 * (width << group);
      }
    }
    register_module("body", body);
    head = register_module("head", Linear(channels, classes));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor hidden = torch::max_pool2d(stem->forward(x).relu_(), 3, 2, 1);
    return head(body->forward(hidden).mean({2, 3}));
  }
  Sequential stem{nullptr}, body;
  Linear head{nullptr};
};
TORCH_MODULE(Resnet);

Words words_of(int argc, char** argv) {
  Words words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) throw troika::UsageError("'" + word + "' is not KEY=VALUE");
    words[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return words;
}

std::vector<std::int64_t> numbers_of(const std::string& text) {
  std::vector<std::int64_t> numbers;
  std::istringstream stream(text);
  for (std::string one; std::getline(stream, one, ',');) numbers.push_back(std::stoll(one));
  return numbers;
}

void run(const Words& words) {
  const auto number = [&](const char* key) { return std::stoll(words.at(key)); };
  const auto session = troika::Session::from_environment({.device = words.at("device")});
  const at::Device device = session.device();
  at::globalContext().setBenchmarkCuDNN(true);
  torch::manual_seed(1);
  Resnet net(numbers_of(words.at("blocks")), number("width"), number("classes"));
  net->to(device);
  for (torch::Tensor& each : net->parameters()) {
    if (each.dim() == 4) each.set_data(each.contiguous(at::MemoryFormat::ChannelsLast));
  }
  troika::DataParallel model(net, session);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const std::int64_t batch = number("batch"), size = number("image");
  const auto images =
      torch::randn({batch, 3, size, size}).to(device).contiguous(at::MemoryFormat::ChannelsLast);
  const auto classes = torch::randint(number("classes"), {batch}).to(device);
  std::cout << "{\"step_seconds\": [";
  double loss_value = 0;
  for (std::int64_t step = 0; step < number("steps"); ++step) {
    const auto started = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const troika::Autocast autocast(at::kBFloat16, device.type());
      loss = torch::cross_entropy_loss(model(images), classes);
    }
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - started;
    std::cout << (step > 0 ? ", " : "") << taken.count();
  }
  std::int64_t parameters = 0;
  for (const torch::Tensor& each : net->parameters()) parameters += each.numel();
  std::cout << "], \"loss\": " << loss_value << ", \"parameters\": " << parameters << "}"
            << std::endl;
  session.leave();
}

}  // namespace

int main(int argc, char** argv) try {
  run(words_of(argc, argv));
} catch (const troika::Error& error) {
  std::cerr << "own_resnet: " << error.what() << std::endl;
  return static_cast<int>(error.code());
} catch (const std::exception& error) {
  std::cerr << "own_resnet: " << error.what() << std::endl;
  return 1;
}
