// Averages of gradients that send less than the gradients themselves, for DataParallelOptions::hook
// and [compress] in recipes. With N ranks, a bucket of n elements of s bytes each is, for each
// rank, an input of
//
//   compress_to_bf16(), _fp16()   2 n bytes to an all-reduce
//   compress_to_int8()            n + 4 ceil(n / block) bytes to an all-gather
//   compress_by_qsgd()            n + 4 ceil(n / 512) bytes to an all-gather
//   keep_top_k()                  k (s + 4) bytes to an all-gather, k = ceil(fraction n)
//   keep_random_k()               k s bytes to an all-reduce
//   compress_by_power_sgd()       s (r (rows + columns)) bytes to all-reduces for each matrix
//
// All-gathers round up to whole 8 bytes. s is that of the gradients, and 4 for 16-bit ones.
//
// What is biased keeps its error and adds it to the next gradients (error feedback, Karimireddy et
// al. 2019): sent = C(g + e), e = g + e - sent. A rank keeps two copies of its gradients for that.
// If buckets are cut anew, errors begin at zero. Where no step is ended (DataParallel), errors that
// are not finite become zero.
#pragma once

#include <troika/compress/bucket_hook.h>

#include <cstdint>
#include <memory>

namespace troika {

// Rounds each block of elements to 8 bits, in units of its largest value / 127, with feedback.
[[nodiscard]] std::shared_ptr<BucketHook> compress_to_int8(std::int64_t block = 256);

// Rounds each value up or down by chance to a multiple of norm / levels, of its block of 512, so
// that the mean is right: QSGD, Alistarh et al. 2017, section 3.1. Levels are 1 to 127. Draws are a
// function of `seed`, step, bucket and rank.
[[nodiscard]] std::shared_ptr<BucketHook> compress_by_qsgd(std::int64_t levels = 127,
                                                           std::uint64_t seed = 0);

// Sends the largest values of a rank, and where they are, with feedback.
[[nodiscard]] std::shared_ptr<BucketHook> keep_top_k(double fraction = 0.01);

// Sends values at random places, the same on all ranks, with feedback. Draws are a function of
// `seed`, step and bucket.
[[nodiscard]] std::shared_ptr<BucketHook> keep_random_k(double fraction = 0.01,
                                                        std::uint64_t seed = 0);

// Sends two factors of rank `rank` of each matrix: PowerSGD, Vogels et al. 2019, algorithm 1, with
// feedback. A parameter of several dimensions is a matrix of its first by the others. Vectors, and
// matrices that the factors would not make smaller, are sent as they are. `Small::kFactorised`
// factorises those, too.
struct PowerSgd {
  std::int64_t rank = 4;
  enum class Small { kWhole, kFactorised } small = Small::kWhole;
};
[[nodiscard]] std::shared_ptr<BucketHook> compress_by_power_sgd(PowerSgd options = {},
                                                                std::uint64_t seed = 0);

// Sums gradients as they are inside each host, and uses `hook` between hosts alone. The ranks of a
// host take turns at the buckets: the one at place (index mod places that every host has) averages
// a bucket with its peers on the other hosts, and keeps the errors of it. What that leaves is
// broadcast inside. `hook` counts hosts for ranks then: N is their number, and bytes are those of a
// host.
[[nodiscard]] std::shared_ptr<BucketHook> between_hosts(std::shared_ptr<BucketHook> hook);

// Round to 16 bits as compress_to_bf16() and _fp16() do, with feedback. Finite values beyond fp16's
// range become its largest; the rest is the error.
[[nodiscard]] std::shared_ptr<BucketHook> round_to_bf16();
[[nodiscard]] std::shared_ptr<BucketHook> round_to_fp16();

}  // namespace troika
