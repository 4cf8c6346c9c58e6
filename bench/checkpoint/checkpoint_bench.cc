// Times checkpoints of a module with Adam on the ranks of a job, as a program of a user's takes
// them: checkpoint_bench FOLDER LAYERS WIDTH SAVES. Rank 0 prints one line of JSON. The peer is
// bench/peers/dcp_checkpoint.py.
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/time.h>
#include <troika/checkpoint/checkpoint.h>
#include <troika/parallel/data_parallel/data_parallel.h>

#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace {

using troika::Clock;
using troika::Seconds;

double since(Clock::time_point begin) {
  return Seconds(Clock::now() - begin).count();
}

void barrier(const troika::Session& session) {
  session.world().barrier({"bench", session.deadline()}).wait();
}

struct Trained {
  Trained(int layers, int width, const troika::Session& session)
      : net(layers_of(layers, width)), model(net, session), optimizer(net->parameters(), 1e-3) {
    for (torch::Tensor& parameter : net->parameters()) {
      parameter.mutable_grad() = torch::full_like(parameter, 1e-3);
    }
    optimizer.step();  // which makes its state
    optimizer.zero_grad();
  }
  static torch::nn::Sequential layers_of(int layers, int width) {
    torch::nn::Sequential net;
    for (int i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(width, width));
    return net;
  }

  torch::nn::Sequential net;
  troika::DataParallel<torch::nn::Sequential> model;
  torch::optim::Adam optimizer;
};

// The same bytes from memory to memory that has been touched, all of them by this rank.
double copy_seconds(const Trained& trained) {
  std::vector<torch::Tensor> from, to;
  for (const torch::Tensor& parameter : trained.net->parameters()) {
    for (int i = 0; i < 3; ++i) {
      from.push_back(parameter.detach());
      to.push_back(torch::zeros_like(from.back()));
    }
  }
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to[i].data_ptr(), from[i].data_ptr(), from[i].nbytes());
  }
  return since(begin);
}

std::string list(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  }
  return text + "]";
}

void remove(const std::string& folder, int step) {
  std::string name = std::to_string(step);
  name.insert(0, 8 - name.size(), '0');
  std::filesystem::remove_all(std::filesystem::path(folder) / ("step-" + name));
}

void run(const std::string& folder, int layers, int width, int saves) {
  const auto session = troika::Session::from_environment();
  Trained trained(layers, width, session);
  const double copied = copy_seconds(trained);
  // The one before is removed between the saves, as the peer does.
  troika::Checkpoint checkpoint(folder, session, {.keep = saves});
  checkpoint.add(trained.model).add(trained.optimizer);
  std::vector<double> stalls, written;
  for (int step = 1; step <= saves; ++step) {
    barrier(session);
    const auto begin = Clock::now();
    checkpoint.save(step);
    stalls.push_back(since(begin));
    checkpoint.wait();
    written.push_back(since(begin));
    if (session.rank() == 0 && step > 1) remove(folder, step - 1);
  }
  barrier(session);
  const auto begin = Clock::now();
  const auto step = checkpoint.load();
  barrier(session);
  const double loaded = since(begin);
  if (step != saves) throw troika::DataError("the last checkpoint is not there");
  if (session.rank() == 0) {
    std::cout << "{\"copy_seconds\": " << copied << ", \"stall_seconds\": " << list(stalls)
              << ", \"save_seconds\": " << list(written) << ", \"load_seconds\": " << loaded << "}"
              << std::endl;
  }
  session.leave();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw troika::UsageError("checkpoint_bench FOLDER LAYERS WIDTH SAVES");
    torch::manual_seed(1);
    run(argv[1], std::stoi(argv[2]), std::stoi(argv[3]), std::stoi(argv[4]));
  } catch (const troika::Error& error) {
    std::cerr << "checkpoint_bench: " << error.what() << std::endl;
    return static_cast<int>(error.code());
  }
}
