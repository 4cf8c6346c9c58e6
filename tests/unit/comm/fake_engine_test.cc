// The engine `fake`, whose peers are copies of the own rank; and the list of engines.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/comm/engines.h>

#include <numeric>

namespace troika {
namespace {

const Call kFakeCall{"label", Deadline::in(Seconds(1))};

Group fake_group(int size, int index) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_group("data", ranks, index, {.engine = "fake"});
}

at::Tensor floats(std::initializer_list<float> values) {
  return at::tensor(std::vector<float>(values));
}

TEST(FakeEngine, ReducesToItsOwnValues) {
  const Group group = fake_group(3, 1);
  const at::Tensor tensor = floats({1, 2, 3});
  group.all_reduce(tensor, ReduceOp::kSum, kFakeCall).wait();
  EXPECT_TRUE(at::equal(tensor, floats({1, 2, 3})));
  const at::Tensor part = at::zeros({1});
  group.reduce_scatter(part, tensor, ReduceOp::kSum, kFakeCall).wait();
  EXPECT_TRUE(at::equal(part, floats({2})));
  EXPECT_EQ(group.input_bytes(), 24u);
}

TEST(FakeEngine, GathersCopiesOfItsOwn) {
  const Group group = fake_group(3, 1);
  const at::Tensor output = at::ones({6});
  group.all_gather(output, floats({7, 8}), kFakeCall).wait();
  EXPECT_TRUE(at::equal(output, floats({7, 8, 7, 8, 7, 8})));
  const std::int64_t counts[] = {1, 2, 3};
  group.all_gather(output, floats({7, 8}), kFakeCall, counts).wait();
  EXPECT_TRUE(at::equal(output, floats({7, 7, 8, 7, 8, 0})));
  group.gather(output, floats({5, 6}), 1, kFakeCall).wait();
  EXPECT_TRUE(at::equal(output, floats({5, 6, 5, 6, 5, 6})));
}

TEST(FakeEngine, MovesWhatIsMeantForThePeers) {
  const Group group = fake_group(2, 0);
  const at::Tensor output = at::ones({4});
  const std::int64_t from[] = {1, 3}, to[] = {1, 2};
  group.all_to_all(output, from, floats({1, 2, 3}), to, kFakeCall).wait();
  EXPECT_TRUE(at::equal(output, floats({1, 2, 3, 0})));
  const at::Tensor received = at::ones({2});
  const Transfer transfers[] = {{Transfer::Direction::kSend, 1, at::ones({2})},
                                {Transfer::Direction::kReceive, 1, received}};
  group.exchange(transfers, kFakeCall).wait();
  EXPECT_TRUE(at::equal(received, at::zeros({2})));
}

TEST(FakeEngine, TakesMetaTensorsAtAnySize) {
  const Group group = fake_group(4096, 4095);
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor input = at::empty({1 << 20}, meta);
  group.all_reduce(input, ReduceOp::kAverage, kFakeCall).wait();
  group.reduce_scatter(at::empty({256}, meta), input, ReduceOp::kSum, kFakeCall).wait();
  group.all_gather(input, at::empty({256}, meta), kFakeCall).wait();
  group.barrier(kFakeCall).wait();
  EXPECT_EQ(group.input_bytes(),
            (std::uint64_t{8} << 20) + 1024);  // inputs of 4 MiB, twice, and 1 KiB
}

TEST(FakeEngine, EndsWithAnAbort) {
  const Group group = fake_group(2, 0);
  group.abort("enough");
  EXPECT_THROW((void)group.barrier(kFakeCall), PeerError);
}

TEST(Engines, AreListedAndRefusedByName) {
  std::vector<std::string> names;
  for (const EngineFacts& each : list_engines()) names.push_back(each.name);
  EXPECT_THAT(names, testing::ElementsAre("shm", "gloo", "mpi", "nccl", "fake"));
  for (const EngineFacts& each : list_engines()) {
    EXPECT_FALSE(each.reason.empty());
    if (each.usable) {
      EXPECT_EQ(resolve_engine(each.name), each.name);
      continue;
    }
    try {
      (void)resolve_engine(each.name);
      ADD_FAILURE() << each.name << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("engine " + each.name));
      EXPECT_THAT(error.hint(),
                  testing::HasSubstr("comm.engine = \"auto\" (SessionOptions::engine)"));
    }
  }
  EXPECT_NE(resolve_engine(kAutoEngine), "fake");
}

TEST(Engines, AreTheWordsOfARecipe) {
  EXPECT_THAT(engine_names(), testing::ElementsAre("auto", "shm", "gloo", "mpi", "nccl", "fake"));
  try {
    (void)resolve_engine("pigeon");
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "no engine is called 'pigeon'");
    EXPECT_EQ(error.hint(), "engines: auto, shm, gloo, mpi, nccl, fake");
  }
}

TEST(Engines, SayWhatTheyCanDo) {
  EXPECT_EQ(traits_of_engine("shm").reach, EngineTraits::Reach::kOneHost);
  EXPECT_EQ(traits_of_engine("gloo").reach, EngineTraits::Reach::kAnyHosts);
  EXPECT_FALSE(traits_of_engine("fake").exchanges());
  EXPECT_FALSE(traits_of_engine("nccl").carries_host_memory());
  EXPECT_FALSE(traits_of_engine("nccl").reduces_in_order);
  EXPECT_TRUE(traits_of_engine(kAutoEngine).exchanges());
}

}  // namespace
}  // namespace troika
