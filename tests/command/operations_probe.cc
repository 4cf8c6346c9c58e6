// Joins a job under any launcher, carries out every operation, checks every element, and prints
//   operations {"rank": 0, "size": 4, "engine": "shm+gloo", "right": 176, "wrong": []}
// with how many came out right, and the names of those that did not. For tests between hosts.
//   operations_probe ENGINE
#include <ATen/ATen.h>
#include <troika/session/session.h>

#include <iostream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "probe.h"

namespace troika {
namespace {

// Small whole numbers: in any order, sums of them are exact in every type.
at::Tensor given_by(int rank, std::int64_t elements, at::ScalarType dtype) {
  return (at::arange(elements, at::kLong) * 7 + 13 * rank).remainder(30).to(dtype);
}

// Member i has i + 1 thirds of `elements`; the second has none.
std::vector<std::int64_t> uneven_counts(int ranks, std::int64_t elements) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(rank == 1 ? 0 : (rank + 1) * elements / 3);
  }
  return counts;
}

class Probe {
 public:
  explicit Probe(Session session) : session_(std::move(session)), group_(session_.world()) {}

  void check(std::int64_t elements, at::ScalarType dtype) {
    case_ = " of " + std::to_string(elements) + " " + c10::toString(dtype);
    elements_ = elements;
    dtype_ = dtype;
    check_reductions();
    check_parts();
    check_all_to_all();
    check_rooted();
    check_exchange();
    group_.barrier(call("barrier")).wait();
    judge("barrier", true);  // counted: it has ended
  }

  [[nodiscard]] std::string report() const {
    std::ostringstream text;
    text << "operations {\"rank\": " << own() << ", \"size\": " << size() << ", \"engine\": \""
         << group_.engine_name() << "\", \"right\": " << right_ << ", \"wrong\": [";
    for (std::size_t i = 0; i < wrong_.size(); ++i) {
      text << (i == 0 ? "\"" : ", \"") << wrong_[i] << "\"";
    }
    text << "]}\n";
    return text.str();
  }

 private:
  [[nodiscard]] int own() const { return session_.rank(); }
  [[nodiscard]] int size() const { return session_.size(); }
  [[nodiscard]] Call call(std::string_view label) const { return session_.call(label); }
  [[nodiscard]] at::Tensor given(int rank) const { return given_by(rank, elements_, dtype_); }

  void judge(const std::string& what, bool right) {
    if (right) {
      ++right_;
    } else {
      wrong_.push_back(what + case_);
    }
  }
  void judge(const std::string& what, const at::Tensor& result, const at::Tensor& expected) {
    judge(what, result.equal(expected));
  }

  [[nodiscard]] at::Tensor reduced(ReduceOp op, std::int64_t elements) const {
    at::Tensor all = at::zeros({size(), elements}, at::kDouble);
    for (int rank = 0; rank < size(); ++rank) all[rank] = given_by(rank, elements, at::kDouble);
    if (op == ReduceOp::kMax) return all.amax(0).to(dtype_);
    if (op == ReduceOp::kMin) return all.amin(0).to(dtype_);
    return (op == ReduceOp::kSum ? all.sum(0) : all.mean(0)).to(dtype_);
  }

  void check_reductions() {
    const std::map<std::string, ReduceOp> operations = {
        {"sum", ReduceOp::kSum}, {"max", ReduceOp::kMax}, {"min", ReduceOp::kMin}};
    for (const auto& [name, op] : operations) {
      const at::Tensor tensor = given(own());
      group_.all_reduce(tensor, op, call(name)).wait();
      judge("all_reduce, " + name, tensor, reduced(op, elements_));
    }
    if (!at::isFloatingType(dtype_)) return;
    const at::Tensor tensor = given(own());
    group_.all_reduce(tensor, ReduceOp::kAverage, call("average")).wait();
    judge("all_reduce, average", tensor, reduced(ReduceOp::kAverage, elements_));
  }

  void check_parts() {
    const auto counts = uneven_counts(size(), elements_);
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const std::int64_t start =
        std::accumulate(counts.begin(), counts.begin() + own(), std::int64_t{0});
    const std::int64_t count = counts[static_cast<std::size_t>(own())];
    const at::Tensor part = at::zeros({count}, dtype_);
    group_
        .reduce_scatter(part, given_by(own(), total, dtype_), ReduceOp::kSum, call("parts"), counts)
        .wait();
    judge("reduce_scatter", part, reduced(ReduceOp::kSum, total).narrow(0, start, count));
    const at::Tensor whole = given_by(0, total, dtype_), all = at::zeros_like(whole);
    group_.all_gather(all, whole.narrow(0, start, count), call("whole"), counts).wait();
    judge("all_gather", all, whole);
  }

  // Member i sends i + 2 j sevenths of the elements to member j.
  void check_all_to_all() {
    const auto sent = [&](int from, int to) {
      return given_by(10 * from + to, (from + 2 * to) * (elements_ / 7), dtype_);
    };
    std::vector<at::Tensor> inputs, expected;
    std::vector<std::int64_t> input_counts, output_counts;
    for (int peer = 0; peer < size(); ++peer) {
      inputs.push_back(sent(own(), peer));
      input_counts.push_back(inputs.back().numel());
      expected.push_back(sent(peer, own()));
      output_counts.push_back(expected.back().numel());
    }
    const at::Tensor result = at::zeros_like(at::cat(expected));
    group_.all_to_all(result, output_counts, at::cat(inputs), input_counts, call("pairs")).wait();
    judge("all_to_all", result, at::cat(expected));
  }

  // Once from and to the first rank, once the last.
  void check_rooted() {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < size(); ++rank) all.push_back(given(rank));
    for (const int root : {0, size() - 1}) {
      const at::Tensor tensor = given(own());
      group_.broadcast(tensor, root, call("from one")).wait();
      judge("broadcast", tensor, given(root));
      const at::Tensor rows = own() == root ? at::zeros({size(), elements_}, dtype_) : at::Tensor();
      group_.gather(rows, given(own()), root, call("to one")).wait();
      judge("gather", own() != root || rows.equal(at::stack(all)));
      const at::Tensor row = at::zeros({elements_}, dtype_);
      group_.scatter(row, own() == root ? at::stack(all) : at::Tensor(), root, call("to each"))
          .wait();
      judge("scatter", row, given(own()));
    }
  }

  // With all other ranks, all at once.
  void check_exchange() {
    std::vector<Transfer> transfers;
    std::vector<at::Tensor> expected, received;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == own()) continue;
      transfers.push_back({Transfer::Direction::kSend, peer, given(own()) + peer});
      received.push_back(at::zeros({elements_}, dtype_));
      transfers.push_back({Transfer::Direction::kReceive, peer, received.back()});
      expected.push_back(given(peer) + own());
    }
    group_.exchange(transfers, call("all at once")).wait();
    bool right = true;
    for (std::size_t i = 0; i < received.size(); ++i) {
      right = right && received[i].equal(expected[i]);
    }
    judge("exchange", right);
  }

  Session session_;
  Group group_;
  std::string case_;
  std::int64_t elements_ = 0;
  at::ScalarType dtype_ = at::kFloat;
  int right_ = 0;
  std::vector<std::string> wrong_;
};

int probe(const std::string& engine) {
  SessionOptions options;
  options.engine = engine;
  options.rendezvous_timeout = Seconds(30);
  options.timeout = Seconds(30);
  const Session session = Session::from_environment(options);
  Probe probe(session);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    for (const std::int64_t elements : {0, 1, 1'001, 70'001}) probe.check(elements, dtype);
  }
  test::say(probe.report());
  session.leave();
  return 0;
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: operations_probe ENGINE\n";
    return 2;
  }
  return troika::test::status_of("operations_probe", [&] { return troika::probe(argv[1]); });
}
