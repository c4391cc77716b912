#include "cli/run/run.h"

#include <google/protobuf/util/message_differencer.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/client.h"
#include "cli/inspect_job.h"
#include "cli/job_file.h"
#include "cli/model/export_folder.h"
#include "cli/model/generate.h"
#include "cli/run/interrupts.h"
#include "cli/run/local_cluster.h"
#include "cli/run/run_folder.h"
#include "cli/text/output.h"
#include "cli/text/render.h"
#include "cli/text/screen.h"
#include "common/event_loop.h"
#include "common/plural.h"
#include "common/protocol/wire.h"

namespace atl::cli {
namespace {

constexpr Duration kTurn = std::chrono::milliseconds(500);
constexpr Duration kLineInterval = std::chrono::seconds(5);  // of lines in a file
constexpr Duration kUnavailableLimit = std::chrono::minutes(1);
constexpr Duration kConnectPause = std::chrono::milliseconds(200);
constexpr int kDifferencesMax = 3;

// A request that has been read and checked before anything is started.
struct Prepared {
  RunFolder folder;
  JobSpec spec;
  int workers = 0, servers = 0;
  std::string export_folder;
};

absl::Status CheckMembers(const RunFlags& flags, const RunFolder& folder, Prepared* prepared) {
  const int64_t islands = std::max<int64_t>(1, prepared->spec.outer.min_islands);
  prepared->workers =
      flags.workers > 0 ? flags.workers : static_cast<int>(std::clamp<int64_t>(islands, 2, 64));
  if (prepared->workers < islands) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers ", prepared->workers, ": the job's outer.min_islands = ", islands,
                     ": name at least as many, each of which is an island"));
  }
  const int before = static_cast<int>(folder.record().servers());
  prepared->servers = flags.servers > 0 ? flags.servers : std::max(1, before);
  if (prepared->servers < before) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--servers ", prepared->servers, ": ", folder.path(), " has the parameters on ", before,
        " of them: name at least as many, or another --folder"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Prepared> Prepare(const RunFlags& flags) {
  const bool shipped = flags.path.empty();
  absl::StatusOr<JobSpec> spec = shipped ? ParseJob(kShippedJob, "alice.toml", flags.settings)
                                         : ReadJobFile(flags.path, flags.settings);
  ATOLL_RETURN_IF_ERROR(spec.status());
  const std::string path = flags.folder.empty() ? "atoll-run/" + spec->name : flags.folder;
  ATOLL_ASSIGN_OR_RETURN(RunFolder folder, RunFolder::Open(path));
  if (shipped) {
    ATOLL_RETURN_IF_ERROR(WriteShippedJob(folder.path()));
    ATOLL_ASSIGN_OR_RETURN(spec, ReadJobFile(folder.path() + "/alice.toml", flags.settings));
  }
  Prepared prepared{std::move(folder), *std::move(spec)};
  ATOLL_RETURN_IF_ERROR(CheckMembers(flags, prepared.folder, &prepared));
  ATOLL_ASSIGN_OR_RETURN(const Inspection found, InspectJob(prepared.spec));
  if (!found.missing.empty()) {
    return absl::NotFoundError(absl::StrCat("the job names what is not on this machine: ",
                                            absl::StrJoin(found.missing, ", ")));
  }
  prepared.export_folder =
      flags.export_folder.empty() ? prepared.folder.path() + "/model" : flags.export_folder;
  ATOLL_RETURN_IF_ERROR(Annotate(CheckExportFolder(prepared.export_folder), "--export"));
  std::cerr << found.text;
  for (const std::string& warning : found.warnings) std::cerr << "warning: " << warning << "\n";
  v1::RunRecord record = prepared.folder.record();
  record.set_servers(prepared.servers);
  ATOLL_RETURN_IF_ERROR(prepared.folder.Write(record));
  return prepared;
}

// "outer.momentum: 0.5 -> 0.9, ..."; empty: they are the same.
std::string DescribeDifferences(const v1::JobSpec& trained, const v1::JobSpec& named) {
  std::string report;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(trained, named)) return "";
  std::vector<std::string> lines = absl::StrSplit(report, '\n', absl::SkipEmpty());
  const bool more = std::ssize(lines) > kDifferencesMax;
  if (more) lines.resize(kDifferencesMax);
  return absl::StrCat(absl::StrJoin(lines, ", "), more ? ", ..." : "");
}

// One run, from its cluster's start to its end.
class LocalRun {
 public:
  LocalRun(const Global& global, Prepared prepared, Interrupts* interrupts)
      : global_(global), prepared_(std::move(prepared)), interrupts_(interrupts) {}

  // The job's state when it has ended. ABORTED: a signal came, which `signal()` is.
  absl::StatusOr<v1::JobSummary> Train() {
    const std::string& folder = prepared_.folder.path();
    ATOLL_ASSIGN_OR_RETURN(
        cluster_,
        LocalCluster::Start({folder, prepared_.workers, prepared_.servers}, interrupts_, &signal_));
    global_.coordinator = cluster_->coordinator();
    ATOLL_ASSIGN_OR_RETURN(client_, Client::Dial(global_.tls, global_.coordinator));
    ATOLL_RETURN_IF_ERROR(SubmitOrResume());
    std::cerr << "cluster: " << CountText(prepared_.servers, "parameter server") << " and "
              << CountText(prepared_.workers, "worker") << " of " << cluster_->threads_text()
              << "; state and logs in " << folder << "\n"
              << "page:    " << cluster_->page() << "\n"
              << "more:    atoll status --coordinator " << global_.coordinator
              << " in another terminal\n"
              << "job:     " << job_ << (resumed_ ? " goes on" : " is submitted")
              << "; Ctrl-C stops it, and the same command goes on\n";
    if (resumed_) ATOLL_RETURN_IF_ERROR(AwaitServers());
    return WatchUntilEnd();
  }

  // The model's folder, once the job is done.
  int ExportModel() {
    ExportFlags flags;
    flags.job = job_;
    flags.folder = prepared_.export_folder;
    const int code = Export(global_, flags);
    if (signal_ == 0) signal_ = interrupts_->Wait(Duration{0});
    return code;
  }

  // Ends all daemons. Without a signal, or after the first one, in order.
  void Stop() {
    if (cluster_ == nullptr) return;
    screen_.Keep();
    if (signal_ != 0) {
      std::cerr << "\natoll: stopping; state is kept in " << prepared_.folder.path()
                << "; Ctrl-C again ends at once\n";
    }
    const bool in_order = cluster_->Stop(interrupts_);
    if (signal_ == 0) return;
    std::cerr << "atoll: " << (in_order ? "stopped" : "ended at once")
              << "; the same command goes on where it was\n";
  }

  const std::string& job() const { return job_; }
  int signal() const { return signal_; }

 private:
  absl::Status SubmitOrResume() {
    v1::SubmitRequest request;
    ATOLL_RETURN_IF_ERROR(Encode(prepared_.spec, request.mutable_spec()));
    v1::RunRecord record = prepared_.folder.record();
    if (!record.job().empty()) {
      const absl::StatusOr<v1::Job> job = client_->Get(record.job());
      if (job.ok()) return Resume(*job, request.spec());
      if (!absl::IsNotFound(job.status())) return job.status();  // else it was removed
    }
    ATOLL_ASSIGN_OR_RETURN(const v1::SubmitReply reply, client_->Submit(request));
    job_ = reply.job();
    record.set_job(job_);
    return prepared_.folder.Write(record);
  }

  absl::Status Resume(const v1::Job& job, const v1::JobSpec& named) {
    job_ = job.summary().job();
    resumed_ = true;
    // In this version's form: an earlier one's lacks keys that have their defaults.
    v1::JobSpec stored = job.spec(), trained;
    ATOLL_ASSIGN_OR_RETURN(const JobSpec spec, Decode(&stored));
    ATOLL_RETURN_IF_ERROR(Encode(spec, &trained));
    const std::string differences = DescribeDifferences(trained, named);
    if (!differences.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(prepared_.folder.path(), " trains ", job_,
                                                        " with other settings (", differences,
                                                        "): name another --folder for these"));
    }
    const v1::JobState state = job.summary().state();
    if (state == v1::JOB_STATE_CANCELLED) {
      return absl::FailedPreconditionError(
          absl::StrCat(job_, " in ", prepared_.folder.path(),
                       " was cancelled: name another --folder to train it again"));
    }
    if (state != v1::JOB_STATE_FAILED && state != v1::JOB_STATE_PAUSED) return absl::OkStatus();
    return client_->Resume(job_).status();
  }

  // Until all servers have attached again, each at a new port: a job that is done is exported at
  // once.
  absl::Status AwaitServers() {
    const Instant limit = SteadyNow() + kUnavailableLimit;
    for (;;) {
      ATOLL_RETURN_IF_ERROR(cluster_->Check().status());
      ATOLL_ASSIGN_OR_RETURN(const v1::ClusterStatus status, client_->Status());
      const auto attached = std::count_if(
          status.members().begin(), status.members().end(), [](const v1::Member& member) {
            return member.kind() == "paramserver" && member.attached();
          });
      if (attached >= prepared_.servers) return absl::OkStatus();
      if (SteadyNow() > limit) {
        return absl::DeadlineExceededError(
            absl::StrCat(attached, " of ", CountText(prepared_.servers, "parameter server"),
                         " attached; see the logs in ", prepared_.folder.path()));
      }
      signal_ = interrupts_->Wait(kConnectPause);
      if (signal_ != 0) return absl::AbortedError("interrupted");
    }
  }

  void Draw(const v1::Job& job) {
    screen_.Show(
        global_.structured, job, [&](int columns) { return ProgressLines(job, columns); },
        [&] { return ProgressLine(job); });
  }

  absl::StatusOr<v1::JobSummary> WatchUntilEnd() {
    const bool terminal = isatty(STDOUT_FILENO) == 1;
    Instant answered = SteadyNow(), drawn{};
    for (;;) {
      ATOLL_ASSIGN_OR_RETURN(const std::string restarted, cluster_->Check());
      if (!restarted.empty()) {
        screen_.Keep();
        std::cerr << "atoll: " << restarted;
      }
      const absl::StatusOr<v1::Job> job = client_->Get(job_);
      const Instant now = SteadyNow();
      if (job.ok()) {
        answered = now;
        const bool ended = Ended(job->summary().state());
        if (terminal || ended || now - drawn >= kLineInterval) {
          drawn = now;
          Draw(*job);
        }
        if (ended) return job->summary();
      } else if (now - answered > kUnavailableLimit) {
        return job.status();
      }
      signal_ = interrupts_->Wait(kTurn);
      if (signal_ != 0) return absl::AbortedError("interrupted");
    }
  }

  Global global_;
  Prepared prepared_;
  Interrupts* const interrupts_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Client> client_;
  Screen screen_;
  std::string job_;
  bool resumed_ = false;
  int signal_ = 0;
};

// A few lines that the shipped job's model writes.
void PrintSample(const Global& global, const std::string& folder) {
  GenerateFlags flags;
  flags.folder = folder;
  flags.prompt = "Alice ";
  flags.has_prompt = true;
  flags.temperature = 0.6;
  std::cout << "the model writes:\n\n";
  Generate(global, flags);
  std::cout << "\n";
}

}  // namespace

int Run(const Global& global, const RunFlags& flags) {
  Interrupts interrupts;
  absl::StatusOr<Prepared> prepared = Prepare(flags);
  if (!prepared.ok()) {
    Fail(prepared.status());
    return absl::IsInvalidArgument(prepared.status()) ? 2 : 1;
  }
  const std::string model = prepared->export_folder;
  LocalRun run(global, *std::move(prepared), &interrupts);
  const absl::StatusOr<v1::JobSummary> ended = run.Train();
  int code = 1;
  if (ended.ok() && ended->state() == v1::JOB_STATE_DONE) {
    code = run.ExportModel();
  } else if (ended.ok()) {
    Fail(absl::AbortedError(
        absl::StrCat(run.job(), " is ", StateText(ended->state(), ended->reason()))));
  } else if (run.signal() == 0) {
    Fail(ended.status());
  }
  run.Stop();
  if (run.signal() != 0) Interrupts::End(run.signal());
  if (code == 0 && !global.structured && flags.path.empty()) PrintSample(global, model);
  return code;
}

}  // namespace atl::cli
