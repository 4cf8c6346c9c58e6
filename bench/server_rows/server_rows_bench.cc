// Times training with a large embedding of which a step touches few rows, on the ranks of a job:
// server_rows_bench rows|dense TABLE_ROWS COLUMNS ROWS STEPS. "rows": a table on a server, by row.
// "dense": torch::nn::Embedding in DataParallel, whose gradient is as large as it is. Rank 0 prints
// one line of JSON. The peer is bench/peers/ddp_rows.py.
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/time.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/server/server_steps.h>

#include <iostream>
#include <string>

namespace {

using troika::Clock;
using troika::Seconds;

struct Sizes {
  std::int64_t table, columns, rows, steps;  // `rows` a step, of all ranks together
};

torch::Tensor ids_of(const Sizes& sizes, std::int64_t step, int rank, std::int64_t count) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step * 1000 + rank));
  return torch::randint(0, sizes.table, {count}, generator, torch::kLong);
}

torch::Tensor loss_of(torch::nn::Linear& head, const torch::Tensor& rows) {
  return (head(rows) - 1).square().mean();
}

void say(const troika::Session& session, const Sizes& sizes, double seconds, double bytes) {
  if (session.rank() != 0) return;
  std::cout << "{\"seconds_per_step\": " << seconds / static_cast<double>(sizes.steps)
            << ", \"bytes_per_step\": " << bytes / static_cast<double>(sizes.steps) << "}"
            << std::endl;
}

void train_rows(const troika::Session& session, const Sizes& sizes) {
  torch::nn::Linear head(sizes.columns, 1);
  troika::ServerStepsOptions options;
  options.steps = sizes.steps + 1;
  options.batch_size = sizes.rows;
  options.optimizer.kind = troika::Chosen<troika::OptimizerKind>::named("sgd");
  troika::ServerSteps sync(head, session, options);
  const troika::ServerTable table =
      sync.table({.name = "rows", .columns = sizes.columns, .rule = troika::RowRule::kSgd});
  auto begin = Clock::now();
  troika::ServerTraffic before;
  while (const auto samples = sync.next()) {
    if (samples->step == 2) {  // the first makes memory
      session.barrier("bench");
      begin = Clock::now();
      before = sync.traffic();
    }
    loss_of(head, table.lookup(ids_of(sizes, samples->step, session.rank(), samples->count)))
        .backward();
    sync.step();
  }
  const double seconds = Seconds(Clock::now() - begin).count();
  const troika::ServerTraffic after = sync.traffic();
  const double bytes = session.sum(
      static_cast<double>(after.sent + after.received - before.sent - before.received), "bytes");
  say(session, sizes, seconds, bytes);
  sync.close();
}

void train_dense(const troika::Session& session, const Sizes& sizes) {
  torch::nn::Linear head(sizes.columns, 1);
  torch::nn::Embedding table(sizes.table, sizes.columns);
  torch::nn::Sequential net(table, head);
  troika::DataParallel model(net, session);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1e-3));
  const std::int64_t own = sizes.rows / session.size();
  auto begin = Clock::now();
  for (std::int64_t step = 0; step <= sizes.steps; ++step) {
    if (step == 1) {
      session.barrier("bench");
      begin = Clock::now();
    }
    optimizer.zero_grad();
    (model(ids_of(sizes, step, session.rank(), own)) - 1).square().mean().backward();
    optimizer.step();
  }
  session.barrier("bench");
  say(session, sizes, Seconds(Clock::now() - begin).count(), 0);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 6) {
      throw troika::UsageError("server_rows_bench rows|dense TABLE_ROWS COLUMNS ROWS STEPS");
    }
    const Sizes sizes{std::stoll(argv[2]), std::stoll(argv[3]), std::stoll(argv[4]),
                      std::stoll(argv[5])};
    const auto session = troika::Session::from_environment({.timeout = Seconds(300)});
    std::string(argv[1]) == "rows" ? train_rows(session, sizes) : train_dense(session, sizes);
    session.leave();
  } catch (const troika::Error& error) {
    std::cerr << "server_rows_bench: " << error.what() << std::endl;
    return static_cast<int>(error.code());
  }
}
