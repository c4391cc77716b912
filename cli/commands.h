// The commands of `atoll` that talk to a coordinator. Each returns the process's exit code: 0 done,
// 1 failed. Data goes to standard output, messages to standard error.

#ifndef ATOLL_CLI_COMMANDS_H_
#define ATOLL_CLI_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/client.h"
#include "common/member_defaults.h"
#include "common/net/control/tls.h"
#include "common/time.h"

namespace atl::cli {

struct Global {
  std::string coordinator = kDefaultCoordinator;  // --coordinator or $ATOLL_COORDINATOR
  TlsOptions tls;
  std::string curve_key_path;  // of the context in use; empty: it has none
  bool structured = false;     // answers are documents for programs (cli/text/output.h)
  // Commands that follow something outlive a coordinator that is unavailable for so long.
  Duration reconnect_for = std::chrono::minutes(5);
};

// Wherever a job is named, the beginning of its id is enough where no other job's id begins so.

struct ValidateFlags {
  std::string path;
  bool live = false;    // the coordinator checks it, too
  bool strict = false;  // what is not on this machine is an error, not a warning
};
int Validate(const Global& global, const ValidateFlags& flags);
struct SubmitFlags {
  std::string path;                   // "-": standard input
  std::string from;                   // JOB or JOB@VERSION, instead of a file
  std::vector<std::string> settings;  // KEY=VALUE over the file's, or over that job's
  bool dry_run = false;               // the coordinator only checks it
  bool strict = false;                // with dry_run: as in ValidateFlags
  bool watch = false;
  std::string rehearsed;   // file of `atoll rehearse --json` of this job; empty: none
  bool unchecked = false;  // data and weights on this machine are not looked at
};
int Submit(const Global& global, const SubmitFlags& flags);
struct ListFlags {
  std::vector<std::string> states;  // "running"; empty: all
  std::string sort = "submitted";   // or job, state, version, loss, validation, speed
  bool reverse = false;
  int64_t newest = 0;  // only so many; 0: all
};
int List(const Global& global, const ListFlags& flags);
// `settings`: prints the job's settings as a job file instead.
int Show(const Global& global, const std::string& job, int decisions, bool settings);
int Watch(const Global& global, const std::string& job, int interval_ms);
struct LogFlags {
  std::string job;  // empty: of all
  bool follow = false;
  int64_t tail = 0;   // the newest lines; 0: all that are kept
  std::string since;  // "10m", or a time such as 2026-11-22T10:00:00Z; empty: all
  std::string severity;
  std::string contains;
};
int Logs(const Global& global, const LogFlags& flags);
struct RecoverFlags {
  std::vector<std::string> from;  // state folders of parameter servers
  std::string job;                // empty: the only one that they hold
  std::string to;
};
// Writes the newest whole version as a Hugging Face folder. Needs no daemon; none may run on these
// folders.
int RecoverCommand(const Global& global, const RecoverFlags& flags);

// Pauses, resumes, adopts or cancels jobs by that call. Client::Cancel needs `yes`, or a terminal
// where the user confirms it; likewise RemoveJobs.
using JobCall = absl::StatusOr<v1::JobSummary> (Client::*)(const std::string& job);
int ControlJobs(const Global& global, const std::vector<std::string>& jobs, JobCall call, bool yes);
// Changes settings, "inner.learning_rate=1e-4", of a job that has not ended: all of them or none.
int ChangeCommand(const Global& global, const std::string& job,
                  const std::vector<std::string>& settings);
// Fills what a server has lost of a job.
int RefillCommand(const Global& global, const std::string& job, const std::string& server);
struct DrainFlags {
  std::string member;
  bool undo = false;
  bool wait = false;  // until it can be stopped
  int timeout_s = 3600;
};
int DrainCommand(const Global& global, const DrainFlags& flags);
struct RemoveFlags {
  std::vector<std::string> jobs;
  bool all = false;    // every job, instead
  bool ended = false;  // with all: only those that have ended
  bool force = false;  // cancels those first that have not
  bool yes = false;
};
int RemoveJobs(const Global& global, const RemoveFlags& flags);
int Status(const Global& global, bool watch);
struct ExportFlags {
  std::string job, folder;
  std::string curve_key_path;  // of this end's secret key, where parameter servers want one
  std::string dtype = "fp32";
  bool merge = false;  // of a job with an adapter
  bool ema = false;    // of a job with inner.ema
};
int Export(const Global& global, const ExportFlags& flags);

// Makes the secret CURVE key of a worker, parameter server or exporting person and prints the
// public one as a line for --curve-clients. Needs no coordinator.
int Keygen(const Global& global, const std::string& path);

}  // namespace atl::cli

#endif  // ATOLL_CLI_COMMANDS_H_
