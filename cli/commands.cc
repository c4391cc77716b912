#include "cli/commands.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/client.h"
#include "cli/confirm.h"
#include "cli/inspect_job.h"
#include "cli/job_file.h"
#include "cli/list.h"
#include "cli/play/rehearse.h"
#include "cli/text/output.h"
#include "cli/text/render.h"
#include "cli/text/screen.h"
#include "common/event_loop.h"
#include "common/protocol/wire.h"
#include "common/toml_text.h"
#include "common/utf8.h"
#include "common/wall_clock.h"

namespace atl::cli {
namespace {

constexpr auto kReconnectInterval = std::chrono::seconds(1);
constexpr int64_t kSubmitHeadBytes = 64 << 10;  // of each file

// Dials, calls, and prints the answer as JSON or by `text`.
template <class Reply>
int Print(const Global& global, const std::function<absl::StatusOr<Reply>(Client&)>& call,
          const std::function<std::string(const Reply&)>& text) {
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto reply = call(**client);
  if (!reply.ok()) return Fail(reply.status());
  std::cout << (global.structured ? Document(*reply) : text(*reply)) << std::flush;
  return 0;
}

absl::StatusOr<v1::SubmitRequest> RequestFrom(const JobSpec& spec) {
  v1::SubmitRequest request;
  ATOLL_RETURN_IF_ERROR(Encode(spec, request.mutable_spec()));
  return request;
}

// "lm-1 (running, round 12, 34.0%, never exported), lm-2 (done, round 162, exported at version
// 162)".
absl::StatusOr<std::string> DescribeJobs(Client& client, const std::vector<std::string>& ids) {
  ATOLL_ASSIGN_OR_RETURN(const v1::ListReply list, client.List());
  std::vector<std::string> texts;
  for (const std::string& id : ids) {
    const auto& jobs = list.jobs();
    const auto found = std::find_if(jobs.begin(), jobs.end(),
                                    [&](const v1::JobSummary& job) { return job.job() == id; });
    texts.push_back(found == jobs.end() ? absl::StrCat(id, " (orphaned)")
                                        : absl::StrCat(id, " (", ShortText(*found), ")"));
  }
  return absl::StrJoin(texts, ", ");
}

// An effect of a command on jobs that cannot be undone; empty: there is none.
struct Effect {
  std::string command, before, after;  // "rm", "deletes ", " for ever"
  bool yes = false;                    // the user has confirmed it by a flag
};

// One call a job; goes on after a failure. All names are looked up before anything is done.
int ForEach(const Global& global, const std::vector<std::string>& jobs, const Effect& effect,
            const std::function<absl::StatusOr<v1::JobSummary>(Client&, const std::string&)>& call,
            const std::function<std::string(const v1::JobSummary&)>& text) {
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  std::vector<std::string> ids;
  for (const std::string& job : jobs) {
    const auto id = (*client)->FindJob(job);
    if (!id.ok()) return Fail(id.status());
    if (std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
  }
  if (!effect.command.empty() && !effect.yes && !ids.empty()) {
    const auto described = DescribeJobs(**client, ids);
    if (!described.ok()) return Fail(described.status());
    const absl::Status confirmed =
        Confirm(effect.command, absl::StrCat(effect.before, *described, effect.after), effect.yes);
    if (!confirmed.ok()) return Fail(confirmed, ConfirmExitCode(confirmed));
  }
  int code = 0;
  for (const std::string& id : ids) {
    const auto reply = call(**client, id);
    if (!reply.ok()) {
      code = Fail(reply.status());
      continue;
    }
    // One object, or one a line where there are several.
    std::cout << (!global.structured ? text(*reply)
                  : ids.size() == 1  ? Document(*reply)
                                     : DocumentLine(*reply))
              << std::flush;
  }
  return code;
}

bool IsCoordinatorUnavailable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status) ||
         absl::IsDeadlineExceeded(status);
}

// Runs `follow(client, on_answer)`, which calls on_answer() with every answer of the coordinator.
// When the coordinator becomes unavailable after its first answer, retries for
// global.reconnect_for.
using OnAnswer = std::function<void()>;
absl::Status Follow(const Global& global, bool answered,
                    const std::function<absl::Status(Client&, const OnAnswer&)>& follow) {
  std::optional<Instant> unavailable_since;
  const OnAnswer on_answer = [&] {
    answered = true;
    if (unavailable_since) std::cerr << "atoll: connected again\n";
    unavailable_since.reset();
  };
  for (;;) {
    ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator,
                                                           answered ? Duration{0} : kDialPatience));
    const absl::Status status = follow(*client, on_answer);
    if (!IsCoordinatorUnavailable(status) || !answered) return status;
    const Instant now = SteadyNow();
    if (!unavailable_since) {
      unavailable_since = now;
      std::cerr << "atoll: " << status.message() << "; retrying for "
                << Seconds(atl::Seconds(global.reconnect_for)) << "\n";
    } else if (now - *unavailable_since > global.reconnect_for) {
      return status;
    }
    std::this_thread::sleep_for(kReconnectInterval);
  }
}

// A line of text every now and then is enough for a file.
int WatchInterval(int requested_ms) {
  if (requested_ms > 0) return requested_ms;
  return isatty(STDOUT_FILENO) == 1 ? 500 : 5000;
}

int GetExitCode(const v1::JobSummary& summary) {
  if (summary.state() == v1::JOB_STATE_DONE) return 0;
  std::cerr << "atoll: " << summary.job() << " is " << StateText(summary.state(), summary.reason())
            << "\n";
  return 1;
}

std::string detach_message;  // for the handler: what it may use is little

void PrintDetachMessage(int signal) {
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, detach_message.data(), detach_message.size());
  raise(signal);  // ends us, when this returns
}

// Ctrl-C ends the watch alone; elsewhere it ends what is watched.
void PrintDetachMessageOnInterrupt(const std::string& job) {
  struct sigaction before {};
  sigaction(SIGINT, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;  // set on purpose, as by nohup
  detach_message = absl::StrCat("\natoll: ", job, " goes on; see it again by atoll watch ", job,
                                ", end it by atoll cancel ", job, "\n");
  struct sigaction action {};
  action.sa_handler = PrintDetachMessage;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

// `submitted`: by us just now, so the coordinator has answered.
int WatchJob(const Global& global, const std::string& job, int interval_ms, bool submitted) {
  PrintDetachMessageOnInterrupt(job);
  Screen screen;
  v1::JobSummary last;
  const auto draw = [&](const v1::Job& message) {
    last = message.summary();
    screen.Show(
        global.structured, message, [&](int columns) { return ProgressLines(message, columns); },
        [&] { return ProgressLine(message); });
    return !Ended(last.state());
  };
  const absl::Status status =
      Follow(global, submitted, [&](Client& client, const OnAnswer& on_answer) -> absl::Status {
        ATOLL_RETURN_IF_ERROR(client.Watch(job, interval_ms, [&](const v1::Job& message) {
          on_answer();
          return draw(message);
        }));
        if (Ended(last.state())) return absl::OkStatus();
        return absl::UnavailableError("the coordinator ended the watch");
      });
  if (!status.ok()) return Fail(status);
  return GetExitCode(last);
}

void PrintWarnings(const Inspection& found) {
  for (const std::string& warning : found.warnings) std::cerr << "warning: " << warning << "\n";
}

// Reads what the job names on this machine and prints what it finds. What is not here is an error,
// or a warning. Returns what `validate` says.
absl::StatusOr<std::string> Inspect(const std::string& path, const JobSpec& spec, bool strict) {
  const auto found = InspectJob(spec);
  if (!found.ok()) return Annotate(found.status(), path);
  const std::string missing = absl::StrJoin(found->missing, ", ");
  if (strict && !missing.empty()) {
    return absl::NotFoundError(absl::StrCat(path, ": not on this machine: ", missing));
  }
  std::cerr << found->text;
  PrintWarnings(*found);
  if (!missing.empty()) {
    std::cerr << "warning: not on this machine: " << missing
              << "; every worker that trains needs it\n";
  }
  return ValidText(*found);
}

// Polls the coordinator about a member that is drained.
absl::StatusOr<v1::DrainReply> DrainState(Client& client, const std::string& name) {
  ATOLL_ASSIGN_OR_RETURN(const v1::ClusterStatus status, client.Status());
  for (const v1::Member& member : status.members()) {
    if (name != member.name() && name != absl::StrCat(member.kind(), "/", member.name())) continue;
    v1::DrainReply reply;
    reply.set_state(member.draining());
    reply.set_drained(member.drained());
    return reply;
  }
  return absl::NotFoundError(absl::StrCat("the coordinator does not know ", name, " any more"));
}

bool IsDrained(const v1::DrainReply& reply) { return reply.drained() || reply.state().empty(); }

}  // namespace

int Validate(const Global& global, const ValidateFlags& flags) {
  const auto spec = ReadJobFile(flags.path);
  if (!spec.ok()) return Fail(spec.status());
  const auto inspected = Inspect(flags.path, *spec, flags.strict);
  if (!inspected.ok()) return Fail(inspected.status());
  const std::string valid = absl::StrCat(flags.path, ": ", *inspected, "\n");
  const auto request = RequestFrom(*spec);
  if (!request.ok()) return Fail(request.status());
  if (flags.live) {
    return Print<v1::ValidateReply>(
        global, [&](Client& client) { return client.Validate(*request); },
        [&](const v1::ValidateReply&) { return valid; });
  }
  std::cout << (global.structured ? Document(request->spec()) : valid);
  return 0;
}

// The job of SubmitFlags::from, changed by the settings, on top of that job's parameters.
absl::StatusOr<JobSpec> ReadBranch(const Global& global, const SubmitFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator));
  const size_t at = flags.from.find('@');
  ATOLL_ASSIGN_OR_RETURN(const std::string job, client->FindJob(flags.from.substr(0, at)));
  ATOLL_ASSIGN_OR_RETURN(const v1::Job reply, client->Get(job));
  const std::string version = at == std::string::npos ? "" : flags.from.substr(at);
  return BranchJob(reply.spec(), job + version, flags.settings);
}

int Submit(const Global& global, const SubmitFlags& flags) {
  if (flags.path.empty() == flags.from.empty()) {
    return FailUsage("name a job file, or --from JOB");
  }
  auto spec =
      flags.from.empty() ? ReadJobFile(flags.path, flags.settings) : ReadBranch(global, flags);
  if (!spec.ok()) return Fail(spec.status());
  if (!flags.rehearsed.empty()) {
    const absl::Status read = ReadRehearsed(flags.rehearsed, *spec);
    if (!read.ok()) return Fail(read);
  }
  if (flags.dry_run) {
    const auto inspected = Inspect(flags.path + flags.from, *spec, flags.strict);
    if (!inspected.ok()) return Fail(inspected.status());
  } else if (!flags.unchecked) {
    const auto found = InspectJob(*spec, {.head_bytes = kSubmitHeadBytes, .remote = false});
    if (!found.ok()) {
      return Fail(Annotate(found.status(),
                           absl::StrCat(flags.path, flags.from, " (--unchecked submits it)")));
    }
    PrintWarnings(*found);
  }
  const auto request = RequestFrom(*spec);
  if (!request.ok()) return Fail(request.status());
  if (flags.dry_run) {
    return Print<v1::ValidateReply>(
        global, [&](Client& client) { return client.Validate(*request); },
        [&](const v1::ValidateReply&) { return "valid; nothing was submitted\n"; });
  }
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto reply = (*client)->Submit(*request);
  if (!reply.ok()) return Fail(reply.status());
  std::cout << (global.structured ? Document(*reply) : reply->job() + "\n") << std::flush;
  return flags.watch ? WatchJob(global, reply->job(), WatchInterval(0), true) : 0;
}

int List(const Global& global, const ListFlags& flags) {
  return Print<v1::ListReply>(
      global,
      [&](Client& client) -> absl::StatusOr<v1::ListReply> {
        ATOLL_ASSIGN_OR_RETURN(const v1::ListReply all,
                               flags.states.empty() ? client.List(flags.newest) : client.List());
        return Select(all, flags.states, flags.sort, flags.reverse, flags.newest);
      },
      [](const v1::ListReply& reply) { return JobsTable(reply, UnixTimeMs()); });
}

int Show(const Global& global, const std::string& job, int decisions, bool settings) {
  return Print<v1::Job>(
      global,
      [&](Client& client) -> absl::StatusOr<v1::Job> {
        ATOLL_ASSIGN_OR_RETURN(const std::string id, client.FindJob(job));
        return client.Get(id);
      },
      [&](const v1::Job& reply) {
        return settings ? TomlText(reply.spec()) : JobText(reply, decisions);
      });
}

int Watch(const Global& global, const std::string& job, int interval_ms) {
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  const auto id = (*client)->FindJob(job);
  if (!id.ok()) return Fail(id.status());
  client->reset();
  return WatchJob(global, *id, WatchInterval(interval_ms), true);
}

int Logs(const Global& global, const LogFlags& flags) {
  v1::LogsRequest request;
  request.set_follow(flags.follow);
  request.set_tail(flags.tail);
  request.set_severity(flags.severity);
  request.set_contains(flags.contains);
  if (WellFormed(flags.contains, flags.contains.size()) != flags.contains) {
    return Fail(absl::InvalidArgumentError("--grep: must be UTF-8"));
  }
  const auto since = ParseSince(flags.since, UnixTimeMs());
  if (!since.ok()) return Fail(since.status());
  request.set_since_unix_ms(*since);
  const auto print = [&](const v1::LogLine& line) {
    request.set_after_sequence(line.sequence());  // where to go on after a reconnect
    request.set_tail(0);
    std::cout << (global.structured ? DocumentLine(line) : LogText(line)) << std::flush;
    return true;
  };
  const absl::Status status =
      Follow(global, false, [&](Client& client, const OnAnswer& on_answer) -> absl::Status {
        if (!flags.job.empty()) {
          ATOLL_ASSIGN_OR_RETURN(*request.mutable_job(), client.FindJob(flags.job));
        }
        ATOLL_RETURN_IF_ERROR(client.List().status());  // there may be no line for long
        if (flags.follow) on_answer();
        return client.Logs(request, print);
      });
  return ExitCode(status);
}

int ControlJobs(const Global& global, const std::vector<std::string>& jobs, JobCall call,
                bool yes) {
  Effect effect;
  if (call == &Client::Cancel) effect = {"cancel", "ends ", ", which cannot be resumed", yes};
  return ForEach(
      global, jobs, effect,
      [&](Client& client, const std::string& job) { return (client.*call)(job); },
      [](const v1::JobSummary& reply) {
        return absl::StrCat(reply.job(), ": ", StateText(reply.state(), reply.reason()), "\n");
      });
}

int ChangeCommand(const Global& global, const std::string& job,
                  const std::vector<std::string>& settings) {
  return Print<v1::ChangeReply>(
      global,
      [&](Client& client) -> absl::StatusOr<v1::ChangeReply> {
        ATOLL_ASSIGN_OR_RETURN(const std::string id, client.FindJob(job));
        return client.Change(id, settings);
      },
      [](const v1::ChangeReply& reply) {
        std::string text = reply.changes().empty() ? "nothing changes: these are its values\n" : "";
        for (const v1::SettingChange& change : reply.changes()) {
          absl::StrAppend(&text, change.field(), ": ", change.before(), " -> ", change.after(),
                          "\n");
        }
        return text;
      });
}

int RefillCommand(const Global& global, const std::string& job, const std::string& server) {
  return ForEach(
      global, {job}, Effect(),
      [&](Client& client, const std::string& id) { return client.Refill(id, server); },
      [&](const v1::JobSummary& reply) {
        return absl::StrCat(reply.job(), ": what ", server,
                            " had of it is filled from an island, without state of its outer "
                            "optimizer; atoll show prints its progress\n");
      });
}

int DrainCommand(const Global& global, const DrainFlags& flags) {
  auto client = Client::Dial(global.tls, global.coordinator);
  if (!client.ok()) return Fail(client.status());
  auto reply = (*client)->DrainMember(flags.member, flags.undo);
  if (!reply.ok()) return Fail(reply.status());
  const auto print = [&] {
    if (global.structured) return;
    std::cout << flags.member << ": " << (flags.undo ? "no longer drained" : reply->state()) << "\n"
              << std::flush;
  };
  print();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(flags.timeout_s);
  while (flags.wait && !IsDrained(*reply)) {
    if (std::chrono::steady_clock::now() >= end) {
      return Fail(absl::DeadlineExceededError(
          absl::StrCat(flags.member, " is not drained after ", flags.timeout_s,
                       " s; it goes on, and atoll status shows when it can be stopped")));
    }
    std::this_thread::sleep_for(kReconnectInterval);
    const std::string before = reply->state();
    reply = DrainState(**client, flags.member);
    if (!reply.ok()) return Fail(reply.status());
    if (reply->state() != before && !reply->state().empty()) print();
  }
  if (flags.wait && reply->state().empty()) {
    return Fail(absl::AbortedError(absl::StrCat("the drain of ", flags.member, " was undone")));
  }
  if (global.structured) std::cout << Document(*reply);
  return 0;
}

int RemoveJobs(const Global& global, const RemoveFlags& flags) {
  std::vector<std::string> jobs = flags.jobs;
  if (jobs.empty() && !flags.all) {
    return FailUsage("JOB is required, or --all; see atoll rm --help");
  }
  if (flags.all) {
    auto client = Client::Dial(global.tls, global.coordinator);
    if (!client.ok()) return Fail(client.status());
    const auto list = (*client)->List();
    if (!list.ok()) return Fail(list.status());
    for (const v1::JobSummary& job : list->jobs()) {
      if (!flags.ended || Ended(job.state())) jobs.push_back(job.job());
    }
    if (jobs.empty())
      std::cerr << "atoll: no job " << (flags.ended ? "has ended" : "is there") << "\n";
  }
  return ForEach(
      global, jobs,
      {"rm", "deletes ", " with parameters and checkpoints; nothing restores that", flags.yes},
      [&](Client& client, const std::string& job) { return client.Remove(job, flags.force); },
      [](const v1::JobSummary& reply) { return absl::StrCat(reply.job(), ": removed\n"); });
}

int Status(const Global& global, bool watch) {
  if (!watch) {
    return Print<v1::ClusterStatus>(
        global, [](Client& client) { return client.Status(); }, StatusText);
  }
  Screen screen;
  const auto draw = [&](const v1::ClusterStatus& message) {
    screen.Show(
        global.structured, message, [&](int) { return StatusText(message); },
        [&] { return StatusText(message) + "\n"; });
  };
  const absl::Status status = Follow(global, false, [&](Client& client, const OnAnswer& on_answer) {
    return client.WatchStatus(0, [&](const v1::ClusterStatus& message) {
      on_answer();
      draw(message);
      return true;
    });
  });
  return ExitCode(status);
}

}  // namespace atl::cli
