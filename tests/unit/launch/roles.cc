#include "roles.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <troika/base/error.h>
#include <troika/launch/agent.h>
#include <troika/launch/exit_report.h>
#include <troika/launch/launcher_watch.h>
#include <troika/launch/restart.h>
#include <troika/observe/log.h>
#include <troika/observe/progress.h>
#include <troika/observe/recorder.h>
#include <troika/rendezvous/rendezvous.h>
#include <troika/rendezvous/store_watch.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <map>

namespace troika::testing {
namespace {

struct Self {
  Environment environment = Environment::of_process();
  World world = world_from_environment(environment).value();
  Reporter reporter{environment};
};

// As good as for ever; the test's own deadline is shorter.
int hang() {
  poll(nullptr, 0, 120'000);
  return 0;
}

// For a moment, so that what another rank does comes first.
void linger() {
  poll(nullptr, 0, 300);
}

int done(Self& self) {
  self.reporter.result("{\"rank\": " + std::to_string(self.world.rank) + "}");
  return 0;
}

int fail(Self& self, const Error& error) {
  self.reporter.error(error);
  return static_cast<int>(error.code());
}

// As a stray pointer would; the address sanitizer, which would exit instead, is not asked.
int crash() {
  std::signal(SIGSEGV, SIG_DFL);
  return raise(SIGSEGV);
}

// Reports, as the train command does, when it is asked to end.
int until_interrupted(Self& self, int signal) {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, signal);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  std::printf("ready\n");
  std::fflush(stdout);
  int got = 0;
  sigwait(&wanted, &got);
  std::printf("ending once\n");
  std::fflush(stdout);
  return fail(self, InterruptedError("interrupted"));
}

// Draws a progress line, as training does, and ends in the middle of it.
int draw_progress(const std::function<int()>& end) {
  ProgressLine line(std::cerr, progress_options(STDERR_FILENO));
  line.draw({"step 7/9"});
  return end();
}

int meet(Self& self) {
  Rendezvous rendezvous =
      Rendezvous::join(self.world, {"1.0", "[train]\n"}, Deadline::in(Seconds(30)));
  rendezvous.leave(Deadline::in(Seconds(30)));
  const World& world = rendezvous.world();
  self.reporter.result("[" + std::to_string(world.rank) + ", " + std::to_string(world.size) + ", " +
                       std::to_string(world.local_rank) + ", " + std::to_string(world.local_size) +
                       ", " + std::to_string(world.node_rank) + ", " +
                       std::to_string(rendezvous.members().size()) + "]");
  return 0;
}

// Rank 1 fails as `end` does it; the others say what they are told.
int told_by_the_store(Self& self, const std::function<int()>& end) {
  Rendezvous rendezvous = Rendezvous::join(self.world, {"1.0", ""}, Deadline::in(Seconds(30)));
  if (self.world.rank == 1) return end();
  std::promise<std::string> reason;
  const StoreWatch watch(
      rendezvous.store(), abort_key(self.world.rank),
      [&](const std::string& value) { reason.set_value(value); },
      [&](const std::string& value) { reason.set_value(value); });
  std::printf("told: %s\n", reason.get_future().get().c_str());
  return fail(self, PeerError("aborted"));
}

int die_after_an_operation(const Self& self) {
  const std::string folder = self.environment.text_or("TROIKA_RECORDERS", "");
  const auto recorder =
      Recorder::create(recorder_path(folder, self.world.rank), self.world.rank, "");
  recorder->end(recorder->begin({"all_reduce", "world", "loss"}));
  return raise(SIGKILL);
}

// Waits until all ranks of this start are there, and have said who they are: those that hang are
// ended as soon as one dies.
void wait_for_all(const Self& self) {
  Store store = Store::connect(self.world.store, Deadline::in(Seconds(30)))
                    .with_prefix("started/" + self.world.job);
  if (store.add("ranks", 1) == self.world.size) store.set("all", "");
  (void)store.get("all", Deadline::in(Seconds(30)));
}

// A job of steps whose number stands in a file, as that of a run does.
int restarts_before(const Self& self) {
  return static_cast<int>(self.environment.number("TORCHELASTIC_RESTART_COUNT").value());
}

void set_step(const Self& self, int step) {
  std::ofstream(self.environment.text_or("STEPS", "")) << step << std::flush;
}

JobProgress progress_in(const std::string& file) {
  JobProgress progress;
  std::ifstream(file) >> progress.step;
  progress.checkpoint = progress.step / 2;
  return progress;
}

// Rank 1 dies twice, each time further on; the others are well in the end.
int advance_and_die_twice(Self& self) {
  wait_for_all(self);
  const int before = restarts_before(self);
  if (before == 2) return done(self);
  if (self.world.rank != 1) return hang();
  set_step(self, 2 * (before + 1));
  return raise(SIGKILL);
}

// Rank 1 dies before it is where it was, and then takes no step: it stays, or goes back to the
// checkpoint.
int redo_and_die(Self& self, std::optional<int> last) {
  wait_for_all(self);
  const int before = restarts_before(self);
  if (self.world.rank != 1) return hang();
  if (before == 0) set_step(self, 6);
  if (before == 1) set_step(self, 5);
  if (before > 1 && last) set_step(self, *last);
  return raise(SIGKILL);
}

// Rank 1 dies where it was, and then differently.
int die_in_place(Self& self) {
  wait_for_all(self);
  if (self.world.rank != 1) return hang();
  set_step(self, 4);
  return restarts_before(self) == 0 ? raise(SIGKILL) : 3;
}

int die_then_fail(Self& self) {
  wait_for_all(self);
  if (self.world.rank != 1) return hang();
  set_step(self, 1 + restarts_before(self));
  return restarts_before(self) == 0 ? raise(SIGKILL) : fail(self, DataError("no data"));
}

int leave_a_grandchild() {
  char name[] = "sleep", time[] = "60";
  char* arguments[] = {name, time, nullptr};
  pid_t pid = 0;
  posix_spawnp(&pid, name, nullptr, nullptr, arguments, environ);
  std::printf("pid %d\n", pid);
  std::fflush(stdout);
  return 3;
}

int talk(Self& self) {
  for (int i = 0; i < 200; ++i) {
    std::printf("out %d %03d ", self.world.rank, i);
    std::fflush(stdout);  // half a line
    std::printf("end\n");
    std::fflush(stdout);
    std::fprintf(stderr, "err %d %03d\n", self.world.rank, i);
  }
  std::printf("no newline");
  std::fflush(stdout);
  return done(self);
}

using Role = std::function<int(Self&)>;

const std::map<std::string, Role>& roles() {
  static const std::map<std::string, Role> roles = {
      {"done", done},
      {"talk", talk},
      {"meet", meet},
      {"told",
       [](Self& self) {
         return told_by_the_store(self,
                                  [&] { return fail(self, DataError("no data", "get some")); });
       }},
      {"told-of-an-exit",
       [](Self& self) {
         return told_by_the_store(self, [&] { return die_after_an_operation(self); });
       }},
      {"hang", [](Self&) { return hang(); }},
      {"killed", [](Self& self) { return self.world.rank == 1 ? raise(SIGKILL) : hang(); }},
      {"exits", [](Self& self) { return self.world.rank == 1 ? 3 : hang(); }},
      {"quiet", [](Self&) { return 0; }},
      {"fails",
       [](Self& self) {
         return self.world.rank == 1 ? fail(self, DataError("no data", "get some")) : hang();
       }},
      {"fails-alike", [](Self& self) { return fail(self, DataError("no data", "get some")); }},
      {"throws",
       [](Self& self) {
         self.reporter.error(std::logic_error("what a surprise"));
         return 1;
       }},
      {"hangs-after-failing",
       [](Self& self) {
         if (self.world.rank == 1) (void)fail(self, DataError("no data"));
         return hang();
       }},
      {"peer-first",
       [](Self& self) {
         if (self.world.rank == 0) return fail(self, PeerError("rank 1 is gone"));
         linger();
         return crash();
       }},
      {"late",
       [](Self& self) {
         return self.world.rank == 0 ? fail(self, DeadlineError("rank 1 is late")) : hang();
       }},
      {"crashes-on-the-way-out",
       [](Self& self) {
         if (self.world.rank == 0) return fail(self, DataError("no data"));
         std::signal(SIGTERM, [](int) { crash(); });
         return hang();
       }},
      {"crashes-after-its-result",
       [](Self& self) {
         (void)done(self);
         return self.world.rank == 1 ? crash() : 0;
       }},
      {"stubborn",
       [](Self& self) {
         std::signal(SIGTERM, SIG_IGN);
         std::signal(SIGINT, SIG_IGN);
         if (self.world.rank == 1) {
           linger();
           return 3;
         }
         std::printf("ready\n");
         std::fflush(stdout);
         return hang();
       }},
      {"stopped",
       [](Self& self) {
         if (self.world.rank == 0) return raise(SIGSTOP);
         linger();
         return 3;
       }},
      {"stopped-and-tidy",
       [](Self& self) {
         if (self.world.rank == 1) {
           linger();
           return 3;
         }
         sigset_t until_then;
         sigemptyset(&until_then);
         sigaddset(&until_then, SIGTERM);
         sigprocmask(SIG_BLOCK, &until_then, nullptr);
         raise(SIGSTOP);
         return until_interrupted(self, SIGTERM);
       }},
      {"advances", advance_and_die_twice},
      {"dies-in-place", die_in_place},
      {"dies-then-fails", die_then_fail},
      {"redoes", [](Self& self) { return redo_and_die(self, std::nullopt); }},
      {"goes-back", [](Self& self) { return redo_and_die(self, 2); }},
      {"grandchild", [](Self&) { return leave_a_grandchild(); }},
      {"dies-twice",
       [](Self& self) {
         wait_for_all(self);
         const int before = restarts_before(self);
         if (before == 2) return 0;
         if (self.world.rank != 1) return hang();
         return before == 0 ? raise(SIGKILL) : 3;
       }},
      {"parent",
       [](Self&) {
         leave_a_grandchild();
         return hang();
       }},
      {"draws-and-dies", [](Self&) { return draw_progress([] { return raise(SIGKILL); }); }},
      {"draws-and-hangs", [](Self&) { return draw_progress(hang); }},
      {"interrupted", [](Self& self) { return until_interrupted(self, SIGINT); }},
      {"terminated", [](Self& self) { return until_interrupted(self, SIGTERM); }},
      {"threads",
       [](Self& self) {
         self.reporter.result(std::getenv("OMP_NUM_THREADS"));
         return 0;
       }},
      {"cores",
       [](Self& self) {
         self.reporter.result("[" + std::to_string(allowed_cores().size()) + ", " +
                              std::getenv("OMP_NUM_THREADS") + "]");
         return 0;
       }},
  };
  return roles;
}

// The flags of a launcher in a test.
LaunchFlags read_flags(const std::vector<std::string>& arguments) {
  LaunchFlags flags;
  for (std::size_t i = 1; i + 1 < arguments.size(); i += 2) {
    const std::string &name = arguments[i], &value = arguments[i + 1];
    if (name == "--ranks") flags.ranks = std::stoi(value);
    if (name == "--ranks-per-node") flags.ranks_per_node = std::stoi(value);
    if (name == "--nodes") flags.nodes = std::stoi(value);
    if (name == "--node-rank") flags.node_rank = std::stoi(value);
    if (name == "--rendezvous") flags.rendezvous = value;
  }
  return flags;
}

// The rank as a grandchild of the launcher.
std::vector<std::string> command_behind(const std::string& wrapper, const std::string& role) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  if (wrapper == "setsid") return {"setsid", "--wait", self, "rank", role};
  const std::string without_report = wrapper == "close" ? " 3>&-" : "";
  return {"sh", "-c", "\"$@\"" + without_report + "; exit $?", "sh", self, "rank", role};
}

LaunchOptions read_options(const std::vector<std::string>& arguments) {
  LaunchOptions options;
  options.plan = plan_launch(read_flags(arguments), {});
  options.command = {"/proc/self/exe", "rank", arguments[0]};
  options.version = "1.0";
  options.grace = Seconds(2);
  options.interrupt_grace = Seconds(30);
  for (std::size_t i = 1; i + 1 < arguments.size(); i += 2) {
    if (arguments[i] == "--command") options.command = {arguments[i + 1]};
    if (arguments[i] == "--behind") {
      options.command = command_behind(arguments[i + 1], arguments[0]);
    }
    if (arguments[i] == "--timeout")
      options.rendezvous_timeout = Seconds(std::stod(arguments[i + 1]));
    if (arguments[i] == "--recorders") options.recorders = arguments[i + 1];
    if (arguments[i] == "--cores") options.usable_cores = std::stoi(arguments[i + 1]);
    if (arguments[i] == "--bind") options.cores = {{allowed_cores().front()}};
    if (arguments[i] == "--words") options.report_policy = ReportPolicy::kOptional;
    if (arguments[i] == "--steps") {
      options.environment["STEPS"] = arguments[i + 1];
      options.progress = [file = arguments[i + 1]] { return progress_in(file); };
    }
    if (arguments[i] == "--version") options.version = arguments[i + 1];
  }
  return options;
}

}  // namespace

int play_rank(const std::string& name) {
  Self self;
  const LauncherWatch watch(self.environment);
  std::printf("pid %d\n", getpid());
  std::fflush(stdout);
  return roles().at(name)(self);
}

int play_launcher(const std::vector<std::string>& arguments) {
  try {
    RestartPolicy policy;
    if (std::ranges::count(arguments, "--steps") == 0) policy.by = RestartsBy::kCount;
    const auto restarts = std::ranges::find(arguments, "--max-restarts");
    if (restarts != arguments.end()) {
      policy.max_restarts = std::stoi(*std::next(restarts));
      configure_log({});
    }
    const LaunchResult result = run_with_restarts(read_options(arguments), policy);
    for (const std::string& one : result.results) {
      if (!one.empty()) std::cout << "result " << one << "\n";
    }
    if (result.failure) {
      std::cerr << "troika: " << result.failure->message << "\n";
      if (!result.failure->hint.empty()) std::cerr << "  hint: " << result.failure->hint << "\n";
    }
    return result.exit_code;
  } catch (const Error& error) {
    std::cerr << "troika: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}

}  // namespace troika::testing
