#include <troika/base/text.h>
#include <troika/launch/root_cause.h>
#include <troika/storage/object_store.h>

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

namespace troika {
namespace {

using Json = nlohmann::json;

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return "signal " + std::to_string(number) + (name ? " (SIG" + std::string(name) + ")" : "");
}

std::string hint_for(int signal, const RankEnd& end) {
  switch (signal) {
    case SIGKILL:
      if (end.report_policy == ReportPolicy::kOptional) {
        return "the kernel kills processes when memory runs out: `dmesg` tells";
      }
      return "the kernel kills processes when memory runs out (`dmesg` tells): a smaller "
             "train.micro_batch_size needs less";
    case SIGBUS:
      return "a file that was mapped has shrunk, or memory for it ran out";
    case SIGSEGV:
    case SIGABRT:
    case SIGILL:
    case SIGFPE:
      return end.has_printed
                 ? "a crash, which is a bug: what the rank printed last, above, may say where"
                 : "a crash, which is a bug: a debugger, or a core dump (`ulimit -c unlimited`), "
                   "says where, as the rank has printed nothing";
    case SIGXFSZ:
      return "a file has reached the size that a process may write: raise the limit, as by `ulimit "
             "-f unlimited`";
    case SIGXCPU:
      return "it has used the processor for as long as a process may: raise the limit, as by "
             "`ulimit -t unlimited`";
    default:
      return "somebody, or the job system, has sent it";
  }
}

std::string name_of(const RankEnd& end, std::string_view host) {
  return "rank " + std::to_string(end.rank) + " (host " + std::string(host) + ", pid " +
         std::to_string(end.pid) + ")";
}

// Whether an operation that failed is all that is known of why it has ended.
bool has_operation_error(const RankEnd& end) {
  return end.error && end.report_policy == ReportPolicy::kOptional;
}

// Whoever has seen the culprit for itself knows more than whoever was told.
CauseKind kind_of_consequence(std::string_view message) {
  const bool quotes = message.find(" gave up: ") != std::string_view::npos ||
                      message.find(" after: ") != std::string_view::npos;
  return quotes ? CauseKind::kSecondHand : CauseKind::kConsequence;
}

// It has ended because an operation failed, and that says who is to blame.
Cause as_consequence(Cause cause, const SavedError& error) {
  cause.kind = kind_of_consequence(error.failure.message);
  cause.message += " after: " + error.failure.message;
  cause.hint = error.failure.hint;
  return cause;
}

Cause cause_of_exit(const RankEnd& end, std::string_view host) {
  Cause cause{CauseKind::kDied, 0, ExitCode::kRankDied, name_of(end, host), ""};
  const std::string_view after = end.report ? ", though it had reported a result" : "";
  if (WIFSIGNALED(end.status)) {
    const int signal = WTERMSIG(end.status);
    cause.message += " was killed by " + signal_name(signal);
    // As by an exception that nobody has caught.
    if (signal == SIGABRT && has_operation_error(end)) return as_consequence(cause, *end.error);
    cause.hint = hint_for(signal, end);
    if (signal == SIGXFSZ) cause.code = ExitCode::kStorage;
  } else {
    cause.message += " ended with exit status " + std::to_string(WEXITSTATUS(end.status));
    if (has_operation_error(end)) return as_consequence(cause, *end.error);
    const bool silent = !end.report && end.report_policy == ReportPolicy::kExpected;
    cause.message += silent ? " and without a word" : "";
    if (end.has_printed) cause.hint = "what it printed last, above, may say why";
  }
  cause.message += after;
  if (!end.last_operation.empty()) cause.message += "; " + end.last_operation;
  if (end.was_ended_by_launcher) cause.kind = CauseKind::kAfterwards;
  return cause;
}

// Found by all ranks together, or told by the one to blame: the message itself names the culprit,
// and the rank that reports it may be innocent.
bool names_culprit(const Failure& failure) {
  if (failure.code == ExitCode::kNonFinite) return true;
  return !failure.secondary && failure.message.starts_with("rank ");
}

Cause cause_of_failure(const RankEnd& end, const std::string& where) {
  const Failure& failure = *end.report->failure;
  CauseKind kind = CauseKind::kFailed;
  if (failure.code == ExitCode::kRendezvous) kind = CauseKind::kRendezvous;
  if (is_interruption(failure.code)) kind = CauseKind::kInterrupted;
  if (end.was_ended_by_launcher) kind = CauseKind::kAfterwards;
  if (failure.secondary) kind = kind_of_consequence(failure.message);
  return {kind, 0, failure.code, (names_culprit(failure) ? "" : where) + failure.message,
          failure.hint};
}

// When all ranks say the same, as they do of a file that is missing, it is not one rank's error.
bool all_say_the_same(const std::vector<RankEnd>& ends, int world_size) {
  const auto message = [](const RankEnd& end) {
    return end.report && end.report->failure ? end.report->failure->message : std::string();
  };
  return static_cast<int>(ends.size()) == world_size &&
         std::all_of(ends.begin(), ends.end(),
                     [&](const RankEnd& end) { return message(end) == message(ends[0]); });
}

// A rank that others have lost may have gone well, and so has no last lines to look at.
void name_early_end(Cause& cause, const std::vector<RankEnd>& ends, std::string_view host) {
  if (cause.kind < CauseKind::kConsequence) return;
  for (const RankEnd& end : ends) {
    if (end.was_ended_by_launcher || !ended_well(end)) continue;
    if (cause.message.find("lost " + name_of(end, host)) == std::string::npos) continue;
    cause.message += "; rank " + std::to_string(end.rank) + " had ended with exit status 0 before";
    cause.hint =
        "all ranks have to come to the same operations; uneven numbers of batches need join() "
        "(docs/own-module.md)";
    return;
  }
}

}  // namespace

bool ended_well(const RankEnd& end) {
  if (!WIFEXITED(end.status) || WEXITSTATUS(end.status) != 0) return false;
  return end.report ? !end.report->failure : end.report_policy == ReportPolicy::kOptional;
}

bool is_failure(const RankEnd& end) {
  if (ended_well(end)) return false;
  if (!end.was_ended_by_launcher) return true;
  if (end.report && end.report->failure) {
    return !is_interruption(end.report->failure->code);
  }
  // Of the signals that the launcher sends it dies as it should; of others it crashes.
  if (!WIFSIGNALED(end.status)) return false;
  const int signal = WTERMSIG(end.status);
  return signal != SIGTERM && signal != SIGKILL && signal != SIGINT && signal != SIGHUP;
}

bool is_interruption(ExitCode code) {
  return code == ExitCode::kInterrupted || code == ExitCode::kCheckpointed;
}

Failure failure_notice(const RankEnd& end, std::string_view host) {
  if (end.report && end.report->failure) {
    Failure notice = *end.report->failure;
    notice.message =
        name_of(end, host) + (notice.secondary ? " gave up: " : " has failed: ") + notice.message;
    return notice;
  }
  const Cause cause = cause_of_exit(end, host);
  return {cause.code, cause.message, cause.hint};
}

std::optional<Cause> first_cause(const std::vector<RankEnd>& ends, std::string_view host,
                                 int world_size) {
  std::vector<Cause> causes;
  const bool same = all_say_the_same(ends, world_size);
  for (const RankEnd& end : ends) {
    if (!is_failure(end)) continue;
    const bool spoke = end.report && end.report->failure;
    const std::string where =
        same ? "" : "rank " + std::to_string(end.rank) + " (host " + std::string(host) + "): ";
    causes.push_back(spoke ? cause_of_failure(end, where) : cause_of_exit(end, host));
    causes.back().order = static_cast<std::int64_t>(causes.size());
    name_early_end(causes.back(), ends, host);
  }
  if (causes.empty()) return std::nullopt;
  return first_of(causes);
}

const Cause& first_of(const std::vector<Cause>& causes) {
  return *std::min_element(causes.begin(), causes.end(), [](const Cause& a, const Cause& b) {
    return std::tie(a.kind, a.order) < std::tie(b.kind, b.order);
  });
}

bool may_not_recur(const Cause& cause) {
  if (cause.kind == CauseKind::kInterrupted) return false;
  if (cause.code == ExitCode::kRankDied) return true;
  if (cause.code == ExitCode::kStorage) return is_outage(cause.message);
  return cause.code == ExitCode::kRendezvous &&
         (cause.kind == CauseKind::kConsequence || cause.kind == CauseKind::kSecondHand);
}

std::string encode(const Cause& cause) {
  return Json{{"kind", static_cast<int>(cause.kind)},
              {"order", cause.order},
              {"failure", encode(Failure{cause.code, cause.message, cause.hint})}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Cause decode_cause(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    const int kind = json.at("kind");
    if (kind < 0 || kind > static_cast<int>(CauseKind::kSecondHand)) {
      throw DataError("a launcher's report has an unknown kind of cause: " + quote(text));
    }
    const Failure failure = decode_failure(json.at("failure").get<std::string>());
    if (failure.message.empty()) {
      throw DataError("a launcher's report names no cause: " + quote(text));
    }
    return {static_cast<CauseKind>(kind), json.at("order"), failure.code, failure.message,
            failure.hint};
  } catch (const Json::exception&) {
    throw DataError("a launcher's report is malformed: " + quote(text));
  }
}

}  // namespace troika
