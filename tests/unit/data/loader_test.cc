#include <troika/data/loader.h>
#include <unit/data/support.h>

#include <condition_variable>
#include <mutex>
#include <set>

namespace troika {
namespace {

using ::testing::HasSubstr;

constexpr Seconds kPatience{30};

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() { write_files(folder_ / "x", 40, 90); }
  std::shared_ptr<const Dataset> open(Pack pack = Pack::kConcatenate) {
    DocumentOptions data = documents_in({folder_ / "x/*"});
    data.pack = pack;
    return open_text(data, token_samples(16), 3);
  }
  TemporaryFolder folder_;
};

TEST_F(LoaderTest, GivesEveryRankItsPartOfEveryStep) {
  for (const Pack pack : {Pack::kConcatenate, Pack::kIsolated, Pack::kPad}) {
    const auto dataset = open(pack);
    for (const std::int64_t ranks : {1, 2, 3, 4}) {
      for (const std::int64_t global_batch : {4, 10, 13}) {
        std::vector<std::unique_ptr<Loader>> loaders;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          loaders.push_back(
              std::make_unique<Loader>(dataset, LoaderOptions{.global_batch_size = global_batch,
                                                              .micro_batch_size = 3,
                                                              .data_rank = rank,
                                                              .data_ranks = ranks}));
        }
        for (std::int64_t step = 1; step <= 4; ++step) {
          const std::int64_t consumed = (step - 1) * global_batch;
          std::int64_t valid = 0;
          std::vector<at::Tensor> inputs;
          for (std::int64_t rank = 0; rank < ranks; ++rank) {
            const StepBatch batch =
                loaders[static_cast<std::size_t>(rank)]->next(Deadline::in(kPatience));
            EXPECT_EQ(batch.step, step);
            EXPECT_EQ(batch.first_ordinal, consumed);
            IndexRange range = even_split(global_batch, rank, ranks);
            range.first += consumed;
            EXPECT_EQ(batch.range, range);
            EXPECT_GE(batch.waited_seconds, 0);
            const auto expected = build_microbatches(*dataset, Split::kTrain, range, 3, step);
            ASSERT_EQ(batch.microbatches.size(), expected.size());
            for (std::size_t i = 0; i < expected.size(); ++i) {
              expect_same(batch.microbatches[i], expected[i]);
              EXPECT_EQ(batch.microbatches[i].index, static_cast<int>(i));
              EXPECT_EQ(expected[i].index, static_cast<int>(i));
              inputs.push_back(expected[i].tensors[0]);
            }
            valid += batch.valid;
          }
          const auto whole =
              build_microbatches(*dataset, Split::kTrain, {consumed, global_batch}, 1000, step);
          EXPECT_TRUE(at::equal(at::cat(inputs), whole.front().tensors[0]));
          EXPECT_EQ(valid, whole.front().valid);
        }
      }
    }
  }
}

TEST_F(LoaderTest, GoesOnWithAnotherBatchSizeAndLayout) {
  const auto dataset = open();
  std::vector<std::int64_t> ids;
  const auto take = [&](LoaderOptions options, int steps) {
    for (options.data_rank = 0; options.data_rank < options.data_ranks; ++options.data_rank) {
      Loader loader(dataset, options);
      for (int i = 0; i < steps; ++i) {
        for (const Microbatch& microbatch : loader.next(Deadline::in(kPatience)).microbatches) {
          for (const std::int64_t id : values(microbatch.sample_ids)) ids.push_back(id);
        }
      }
    }
  };
  take({.global_batch_size = 8, .micro_batch_size = 2, .data_ranks = 2}, 3);
  take({.first_step = 4,
        .first_ordinal = 24,
        .global_batch_size = 5,
        .micro_batch_size = 4,
        .data_ranks = 3},
       4);
  std::sort(ids.begin(), ids.end());
  ASSERT_EQ(ids.size(), 44U);
  std::set<std::int64_t> indices;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(ids[i], static_cast<std::int64_t>(i));
    indices.insert(dataset->at(Split::kTrain, ids[i]).index);
  }
  EXPECT_EQ(indices.size(), 44U);  // within one epoch each sample once
}

TEST_F(LoaderTest, PassesErrorsOnAndKeepsThrowing) {
  const auto dataset = open();
  for (const auto& file : std::filesystem::directory_iterator(folder_ / "x")) {
    std::filesystem::remove(file);
  }
  Loader loader(dataset, {.global_batch_size = 2});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(message_of([&] { static_cast<void>(loader.next(Deadline::in(kPatience))); }),
                HasSubstr("cannot read the data file"));
  }
}

TEST_F(LoaderTest, StopsAtAnyTime) {
  const auto dataset = open();
  for (int taken = 0; taken < 4; ++taken) {
    Loader loader(dataset, {.global_batch_size = 64, .micro_batch_size = 1});
    for (int i = 0; i < taken; ++i) static_cast<void>(loader.next(Deadline::in(kPatience)));
  }
}

// A data set that is as slow as the test wants: each microbatch needs a permit.
class GatedDataset final : public Dataset {
 public:
  explicit GatedDataset(std::shared_ptr<const Dataset> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] std::int64_t samples(Split split) const override { return inner_->samples(split); }
  [[nodiscard]] SampleRef at(Split split, std::int64_t ordinal) const override {
    return inner_->at(split, ordinal);
  }
  [[nodiscard]] Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                      std::int64_t step) const override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [this] { return permits_ > 0; })) {
      throw DataError("no permit came");
    }
    --permits_;
    ++built_;
    changed_.notify_all();
    return inner_->microbatch(split, samples, step);
  }
  [[nodiscard]] std::string fingerprint() const override { return inner_->fingerprint(); }
  [[nodiscard]] std::optional<double> bytes_per_token() const override { return {}; }
  [[nodiscard]] DatasetFacts facts() const override { return {}; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override {
    return inner_->warnings();
  }

  void permit(int count) {
    const std::scoped_lock lock(mutex_);
    permits_ += count;
    changed_.notify_all();
  }
  [[nodiscard]] bool wait_for_built(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return built_ >= count; });
  }
  [[nodiscard]] int permits() {
    const std::scoped_lock lock(mutex_);
    return permits_;
  }

 private:
  std::shared_ptr<const Dataset> inner_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int permits_ = 0;
  mutable int built_ = 0;
};

TEST_F(LoaderTest, RunsAheadAsFarAsItMay) {
  const auto gated = std::make_shared<GatedDataset>(open());
  gated->permit(100);
  Loader loader(gated, {.global_batch_size = 2, .micro_batch_size = 2, .steps_ahead = 3});
  // Three lie ready and the fourth waits for room.
  ASSERT_TRUE(gated->wait_for_built(4));
  EXPECT_EQ(gated->permits(), 96);
  EXPECT_EQ(loader.next(Deadline::in(kPatience)).step, 1);
  ASSERT_TRUE(gated->wait_for_built(5));
  EXPECT_EQ(gated->permits(), 95);
}

TEST_F(LoaderTest, NamesTheStepThatDoesNotCome) {
  const auto gated = std::make_shared<GatedDataset>(open());
  gated->permit(1);
  Loader loader(gated, {.first_step = 7, .global_batch_size = 2, .micro_batch_size = 2});
  EXPECT_EQ(loader.next(Deadline::in(kPatience)).step, 7);
  const std::string message = message_of<DeadlineError>(
      [&] { static_cast<void>(loader.next(Deadline::in(Seconds(0.02)))); });
  EXPECT_THAT(message, HasSubstr("the data of step 8 did not come within 20"));
  gated->permit(100);  // it comes after all
  const StepBatch batch = loader.next(Deadline::in(kPatience));
  EXPECT_EQ(batch.step, 8);
}

}  // namespace
}  // namespace troika
