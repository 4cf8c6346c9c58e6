#include <gmock/gmock.h>

#include <cstring>
#include <deque>
#include <latch>
#include <random>

#include "members.h"
#include "sums.h"

namespace troika::shm::testing {
namespace {

class Reduce : public ::testing::TestWithParam<int> {};

TEST_P(Reduce, GivesEveryMemberTheSums) {
  Members members(GetParam());
  const Shape shape = members.group(0).shape();
  const std::size_t window = shape.window_bytes / 4, slot = shape.slot_bytes / 4;
  members.run([&](int member, ShmGroup& group) {
    std::uint64_t number = 0;
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{7}, slot, slot + 1, window, window + 1, 3 * window + 17}) {
      Values own = values_of(member, count, number);
      Collective collective(group, kNoSegments, ++number, signed_as(count),
                            contribution(own, false));
      collective.announce("sum", soon());
      collective.reduce(kReduce, 4, soon());
      EXPECT_EQ(own, sums_of(members.size(), count, number - 1)) << count;
    }
  });
}

// The last member to come finds all there, and the others need nothing more of it: one thread can
// play all members. The large slots are used again and again.
TEST_P(Reduce, TakesOneStepInLargeSlots) {
  Members members(GetParam());
  const Shape shape = members.group(0).shape();
  for (std::uint64_t number = 1; number <= 3 * Shape::kLargeSlots; ++number) {
    const std::size_t bytes = number % 2 == 0 ? shape.large_slot_bytes : shape.slot_bytes + 4;
    std::vector<Values> values;
    std::deque<Collective> collectives;
    for (int member = 0; member < members.size(); ++member) {
      values.push_back(values_of(member, bytes / 4, number));
    }
    for (int member = 0; member < members.size(); ++member) {
      Contribution own = contribution(values[static_cast<std::size_t>(member)], false);
      own.at_once = bytes;
      EXPECT_TRUE(members.group(member).large_slot_is_free());
      collectives.emplace_back(members.group(member), kNoSegments, number, signed_as(bytes), own);
      collectives.back().announce("sum", soon());
      EXPECT_EQ(collectives.front().ready(), member + 1 == members.size());
    }
    for (Collective& collective : collectives) collective.reduce(kReduce, 4, soon());
    for (const Values& sums : values) EXPECT_EQ(sums, sums_of(members.size(), bytes / 4, number));
  }
}

// While one member reduces a window the other fills the next: else they would wait for each other
// here.
TEST(Windows, AreFilledWhileTheOnesBeforeAreReduced) {
  Members members(2);
  const std::size_t window = members.group(0).shape().window_bytes, count = 4 * window / 4;
  members.run([&](int member, ShmGroup& group) {
    Values values = values_of(member, count, 1);
    Collective collective(group, kNoSegments, 1, signed_as(count), contribution(values, false));
    collective.announce("sum", soon());
    std::uint64_t reduced = 0;
    const auto reducer = [&](std::span<const std::byte* const> views, std::byte* out,
                             std::size_t bytes) {
      if (++reduced < 4) {
        const std::uint64_t next = Progress::at(1, 2 * reduced);  // the other has filled it
        const auto filled = [&] {
          return group.control_block(1 - member).operation(1).progress.load() >= next;
        };
        group.wait(
            filled, [&] { return std::vector{1 - member}; }, soon());
      }
      kReduce(views, out, bytes);
    };
    collective.reduce(reducer, 4, soon());
    EXPECT_EQ(reduced, 4u);
    EXPECT_EQ(values, sums_of(2, count, 1));
  });
}

TEST(LargeSlots, AreTakenOnceAllAreDoneWithThem) {
  Members members(2);
  ShmGroup& group = members.group(0);
  for (std::uint64_t number = 1; number <= Shape::kLargeSlots; ++number) {
    EXPECT_TRUE(group.large_slot_is_free());
    (void)group.take_large_slot(number, soon());
    group.advance(number, Progress::kDone);
  }
  EXPECT_FALSE(group.large_slot_is_free());  // the other has not even entered
  EXPECT_THROW((void)group.take_large_slot(Shape::kLargeSlots + 1, Deadline::in(Seconds(0.05))),
               TimedOut);
}

TEST_P(Reduce, ReducesMemoryForAllInPlace) {
  constexpr std::size_t kCount = 100'003;  // several blocks, the last of which is not whole
  Members members(GetParam());
  Arenas arenas(members.size(), kCount);
  const FindSegment find = arenas.find();
  members.run([&](int member, ShmGroup& group) {
    for (std::uint64_t number = 1; number <= 3; ++number) {
      arenas.of(member) = values_of(member, kCount, number);
      Collective collective(group, find, number, signed_as(kCount),
                            contribution(arenas.of(member), true));
      collective.announce("sum", soon());
      collective.reduce(kReduce, 4, soon());
      EXPECT_EQ(arenas.of(member), sums_of(members.size(), kCount, number));
    }
  });
}

TEST_P(Reduce, MixesMemoryForAllAndMemoryOfOnesOwn) {
  const std::size_t count = 3 * Shape().window_bytes / 4 + 5;
  Members members(GetParam());
  Arenas arenas(members.size(), count);
  const FindSegment find = arenas.find();
  members.run([&](int member, ShmGroup& group) {
    arenas.of(member) = values_of(member, count, 1);
    Collective collective(group, find, 1, signed_as(count),
                          contribution(arenas.of(member), member % 2 == 0));
    collective.announce("sum", soon());
    collective.reduce(kReduce, 4, soon());
    EXPECT_EQ(arenas.of(member), sums_of(members.size(), count, 1));
  });
}

// What fits into large slots: the members with memory for all change it only once all have read it.
TEST_P(Reduce, MixesMemoryForAllAndLargeSlots) {
  const std::size_t count = Shape().large_slot_bytes / 4;
  Members members(GetParam());
  Arenas arenas(members.size(), count);
  const FindSegment find = arenas.find();
  members.run([&](int member, ShmGroup& group) {
    for (std::uint64_t number = 1; number <= 3 * Shape::kLargeSlots; ++number) {
      arenas.of(member) = values_of(member, count, number);
      const bool shared = (static_cast<std::uint64_t>(member) + number) % 2 == 0;
      Contribution own = contribution(arenas.of(member), shared);
      own.at_once = own.bytes;
      Collective collective(group, find, number, signed_as(count), own);
      collective.announce("sum", soon());
      collective.reduce(kReduce, 4, soon());
      EXPECT_EQ(arenas.of(member), sums_of(members.size(), count, number));
    }
  });
}

// Small ones are told to be done with by the block, in whatever order they end.
TEST_P(Reduce, GoesRoundTheRingInSmallSlots) {
  constexpr std::size_t kCount = 8;
  Members members(GetParam());
  members.run([&](int member, ShmGroup& group) {
    const auto start = [&](Values& values, std::uint64_t number) {
      values = values_of(member, kCount, number);
      Contribution own = contribution(values, false);
      own.at_once = own.bytes;
      Collective collective(group, kNoSegments, number, signed_as(kCount), own);
      collective.announce("sum", soon());
      return collective;
    };
    for (std::uint64_t number = 1; number <= 20 * Shape::kRing; number += 2) {
      Values one, two;
      Collective first = start(one, number), second = start(two, number + 1);
      second.reduce(kReduce, 4, soon());
      first.reduce(kReduce, 4, soon());
      EXPECT_EQ(one, sums_of(members.size(), kCount, number));
      EXPECT_EQ(two, sums_of(members.size(), kCount, number + 1));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Members, Reduce, ::testing::Values(2, 3, 5));

TEST(Gather, ShowsContributionsOfDifferentSizes) {
  Members members(3);
  const std::size_t window = members.group(0).shape().window_bytes / 4;
  const std::vector<std::size_t> counts = {2 * window + 3, 0, 10};
  members.run([&](int member, ShmGroup& group) {
    Values own = values_of(member, counts[static_cast<std::size_t>(member)], 1);
    std::vector<Values> all;
    for (const std::size_t count : counts) all.emplace_back(count);
    Collective collective(group, kNoSegments, 1, signed_as(1), contribution(own, false));
    collective.announce("gather", soon());
    collective.gather(
        [&](std::span<const std::byte* const> views, std::size_t begin, std::size_t end) {
          for (std::size_t i = 0; i < views.size(); ++i) {
            const std::size_t last = std::min(end, counts[i] * 4);
            if (begin < last) {
              std::memcpy(reinterpret_cast<std::byte*>(all[i].data()) + begin, views[i],
                          last - begin);
            }
          }
        },
        soon());
    for (int other = 0; other < 3; ++other) {
      const auto i = static_cast<std::size_t>(other);
      EXPECT_EQ(all[i], values_of(other, counts[i], 1));
    }
  });
}

// Thousands of operations of all sizes, with members that sleep at random: lost wake-ups and
// entries used too early show here, and races under the thread sanitizer.
class Stress : public ::testing::TestWithParam<Fences> {};

INSTANTIATE_TEST_SUITE_P(Fences, Stress, ::testing::Values(Fences::kOnPublish, Fences::kOnWait));

TEST_P(Stress, OperationsOfAllSizes) {
  constexpr std::uint64_t kOperations = 3000;
  Shape shape;
  shape.window_bytes = 4096;
  shape.slot_bytes = 512;
  shape.large_slot_bytes = 2048;
  for (const Seconds spin : {Seconds(0), Seconds(20e-6)}) {
    Members members(4, spin, shape, GetParam());
    Arenas arenas(members.size(), 8192);
    const FindSegment find = arenas.find();
    members.run([&](int member, ShmGroup& group) {
      std::mt19937 shared(1);  // the same draws on all members
      std::mt19937 own_draws(static_cast<unsigned>(member) + 100);
      for (std::uint64_t number = 1; number <= kOperations; ++number) {
        const std::size_t count = shared() % 2 == 0 ? shared() % 128 + 1 : shared() % 8192 + 1;
        if (own_draws() % 64 == 0) std::this_thread::yield();
        // In memory for all, or in the member's own: each as it pleases.
        const bool for_all = own_draws() % 2 == 0;
        Values own_memory;
        Values& sums = for_all ? arenas.of(member) : own_memory;
        sums = values_of(member, count, number);  // peers look where it lies once this has entered
        Contribution own = contribution(sums, for_all);
        if (own.bytes <= shape.large_slot_bytes) own.at_once = own.bytes;
        Collective collective(group, find, number, signed_as(count), own);
        collective.announce("sum", soon());
        collective.reduce(kReduce, 4, soon());
        ASSERT_EQ(sums, sums_of(members.size(), count, number)) << number;
      }
    });
  }
}

// One tells, the other goes to sleep at about the same time, in turn: nothing that comes later
// wakes a waiter that has missed it.
TEST_P(Stress, NoWakeUpIsLost) {
  constexpr std::uint64_t kTurns = 100'000;
  Members members(2, Seconds(0), {}, GetParam());
  members.run([&](int member, ShmGroup& group) {
    std::minstd_rand draws(1);
    for (std::uint64_t number = 1; number <= kTurns; ++number) {
      const int teller = static_cast<int>(number % 2);
      if (member == teller) {
        for (std::uint64_t i = draws() % 256; i > 0; --i)
          std::atomic_signal_fence(std::memory_order_seq_cst);
        group.advance(number, 1);
      } else {
        const auto& progress = group.control_block(teller).operation(number).progress;
        group.wait([&] { return progress.load() >= Progress::at(number, 1); },
                   [&] { return std::vector<int>{teller}; }, soon());
      }
    }
  });
}

// Operations that are announced together and finished in another order.
TEST_P(Stress, OperationsUnderWayTogether) {
  Members members(3, Seconds(20e-6), {}, GetParam());
  members.run([&](int member, ShmGroup& group) {
    std::uint64_t number = 0;
    for (int round = 0; round < 100; ++round) {
      std::vector<Values> own;
      std::vector<std::unique_ptr<Collective>> under_way;
      for (std::size_t i = 0; i < 20; ++i) own.push_back(values_of(member, i + 1, number + i + 1));
      for (Values& values : own) {
        ++number;
        under_way.push_back(std::make_unique<Collective>(
            group, kNoSegments, number, signed_as(values.size()), contribution(values, false)));
        under_way.back()->announce("sum", soon());
      }
      for (std::size_t i = 0; i < own.size(); ++i) {
        const std::size_t which = (i * 7 + static_cast<std::size_t>(member)) % own.size();
        under_way[which]->reduce(kReduce, 4, soon());
        ASSERT_EQ(own[which], sums_of(members.size(), which + 1, number - own.size() + which + 1));
      }
    }
  });
}

TEST(Failures, NameWhoIsMissing) {
  Members members(3);
  std::latch announced(2);
  members.run([&](int member, ShmGroup& group) {
    if (member == 1) return;
    Values own = {1};
    Collective collective(group, kNoSegments, 1, signed_as(1), contribution(own, false));
    collective.announce("sum", soon());
    announced.arrive_and_wait();
    try {
      collective.reduce(kReduce, 4, Deadline::in(Seconds(0.05)));
      ADD_FAILURE();
    } catch (const TimedOut& late) {
      EXPECT_THAT(late.missing(), ::testing::ElementsAre(1));
    }
  });
}

TEST(Failures, NameWhatAnotherMemberIsIn) {
  Members members(2);
  members.run([&](int member, ShmGroup& group) {
    Values own = {1};
    const std::string name = member == 0 ? "all_reduce 'a'" : "all_gather 'b'";
    Collective collective(group, kNoSegments, 1, signed_as(static_cast<std::uint64_t>(member)),
                          contribution(own, false));
    collective.announce(name, soon());
    try {
      collective.reduce(kReduce, 4, soon());
      ADD_FAILURE();
    } catch (const Mismatch& mismatch) {
      EXPECT_EQ(mismatch.member(), 1 - member);
      EXPECT_EQ(mismatch.theirs(), member == 0 ? "all_gather 'b'" : "all_reduce 'a'");
    }
  });
}

TEST(Failures, OneThatGivesUpWakesTheOthers) {
  Members members(3, Seconds(0));
  members.run([&](int member, ShmGroup& group) {
    Values own = {1};
    if (member == 2) return group.abort("no more");
    Collective collective(group, kNoSegments, 1, signed_as(1), contribution(own, false));
    collective.announce("sum", soon());
    try {
      collective.reduce(kReduce, 4, soon());
      ADD_FAILURE();
    } catch (const Broken& broken) {
      EXPECT_STREQ(broken.what(), "no more");
    }
  });
}

TEST(Failures, OneThatHasLeftIsMissedByThoseWhoWaitForIt) {
  Members members(3, Seconds(0));
  members.run([&](int member, ShmGroup& group) {
    if (member == 2) return group.leave();
    group.on_peer_exit(2, "gone");
    // What the other two do goes on.
    Mailbox mailbox(group);
    const auto batch = std::make_shared<Mailbox::Batch>();
    const Values sent = values_of(member, 100'000, 1);
    Values received(sent.size());
    const std::size_t bytes = sent.size() * sizeof(sent[0]);
    mailbox.send(batch, 1 - member, reinterpret_cast<const std::byte*>(sent.data()), bytes);
    mailbox.receive(batch, 1 - member, reinterpret_cast<std::byte*>(received.data()), bytes);
    mailbox.wait(batch, soon());
    EXPECT_EQ(received, values_of(1 - member, received.size(), 1));

    Values own = {1};
    Collective collective(group, kNoSegments, 1, signed_as(1), contribution(own, false));
    collective.announce("sum", soon());
    try {
      collective.reduce(kReduce, 4, soon());
      ADD_FAILURE();
    } catch (const Broken& broken) {
      EXPECT_STREQ(broken.what(), "gone");
    }
    EXPECT_TRUE(group.broken());
  });
}

TEST(Failures, WhatAMemberDidBeforeItsEndCounts) {
  Members members(2, Seconds(0));
  members.run([&](int member, ShmGroup& group) {
    bool looked = false;
    const auto ready = [&] {
      // It ends between two looks.
      if (looked && !group.broken()) {
        group.fail("dead");
        return false;
      }
      looked = true;
      return group.broken();
    };
    group.wait(
        ready, [&] { return std::vector{1 - member}; }, soon());
  });
}

}  // namespace
}  // namespace troika::shm::testing
