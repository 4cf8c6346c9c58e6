// The mark that a run leaves in an object store. Stores themselves are tried with the command.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <troika/checkpoint/owner_mark.h>
#include <unistd.h>

namespace troika {
namespace {

TEST(OwnerMark, IsReadAsItWasWritten) {
  OwnerMark mark = make_owner_mark();
  mark.heartbeats = 7;
  EXPECT_EQ(parse_mark(format_mark(mark)), mark);
  EXPECT_EQ(mark.pid, getpid());
  EXPECT_FALSE(mark.started.empty());
}

TEST(OwnerMark, WhatIsNoneIsReadAsNothing) {
  const std::string text = format_mark(make_owner_mark());
  EXPECT_FALSE(parse_mark(""));
  EXPECT_FALSE(parse_mark("{}"));
  EXPECT_FALSE(parse_mark(text + "more\n"));
  EXPECT_FALSE(parse_mark("holder\nprocesses\nfour\n1\n2\n"));
}

TEST(OwnerMark, OfAProcessOfThisHostSaysWhetherItLives) {
  OwnerMark mark = make_owner_mark();
  EXPECT_EQ(lives_here(mark), true);
  // Another process may have the number by now.
  mark.started += "0";
  EXPECT_EQ(lives_here(mark), false);
  mark.processes = "another host";
  EXPECT_EQ(lives_here(mark), std::nullopt);
}

TEST(OwnerMark, OfAProcessThatHasEndedIsDeadBeforeAnyoneReapsIt) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = format_mark(make_owner_mark());
    _exit(write(ends[1], text.data(), text.size()) > 0 ? 0 : 1);
  }
  close(ends[1]);
  char text[4096];
  const ssize_t size = read(ends[0], text, sizeof(text));
  close(ends[0]);
  ASSERT_GT(size, 0);
  const auto mark = parse_mark({text, static_cast<std::size_t>(size)});
  ASSERT_TRUE(mark);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(lives_here(*mark), false);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(lives_here(*mark), false);
}

TEST(OwnerMark, IsOfOneProcessWhateverItsBeat) {
  OwnerMark mark = make_owner_mark(), other = mark;
  other.heartbeats = 3;
  EXPECT_TRUE(is_of_one_process(mark, other));
  other.started += "1";
  EXPECT_FALSE(is_of_one_process(mark, other));
}

}  // namespace
}  // namespace troika
