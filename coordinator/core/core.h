// The coordinator: members, jobs, outer rounds, the data ledger and the parameters' placement, as
// one pure state machine. Fault tolerance is decided here: missing heartbeats evict members,
// generations fence islands, and a restart recovers from the store. Start here; README.md has the
// rules, records.h what is stored, views.h what users see.
//
// Driving it:
//
//   CoordinatorCore core(options, cluster, epoch);
//   Status status = core.Recover(now, all stored records);  // also when there are none
//   for (;;) {
//     Actions a = core.Step(now, event);
//     store.Apply(a.persist);  // one transaction, durable before anything below is done
//     send a.to_workers, a.to_servers; answer a.replies;
//     wait for an event, or until a.next_deadline: then Tick
//   }
//
// If the store fails, nothing of that Step may be sent and the process ends: the next one recovers.
// Pure: no I/O, clock, threads or randomness. The same events give the same actions. Not
// thread-safe: one thread owns it.

#ifndef ATOLL_COORDINATOR_CORE_CORE_H_
#define ATOLL_COORDINATOR_CORE_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/protocol/job_spec.h"
#include "common/protocol/plan_request.h"
#include "common/time.h"
#include "coordinator/core/records.h"
#include "coordinator/core/shards/server_access_cost.h"
#include "coordinator/core/sharing/quotas.h"
#include "coordinator/core/views.h"

namespace atl {

struct CoordinatorOptions {
  // Members must say the same in their hello; empty: whatever they say.
  std::string software_version;
  int64_t max_shard_bytes = int64_t{64} << 20;  // of fp32 parameters
  // Members that say nothing for three of these are lost; those whose connection is, at once.
  Duration heartbeat_interval = kHeartbeatInterval;
  // When the island that this worker leads last made progress; for a rehearsal, whose heartbeats
  // are rare. Null: heartbeats say it.
  std::function<Instant(const NodeId& leader)> last_progress = nullptr;
  // After a restart of the coordinator, members may take so long to come back before they count as
  // dead.
  Duration reattach_grace = std::chrono::seconds(15);
  // A worker of another name may take a dead worker's island after so long.
  Duration vacant_island_grace = std::chrono::seconds(30);
  // An island whose workers all failed waits so long for those whose disks hold its state.
  Duration saved_state_grace = std::chrono::seconds(30);
  // A job starts without workers that take longer to open its model and data, if the others are
  // enough; they join later.
  Duration prepare_limit = std::chrono::seconds(60);
  // A finished job waits so long for its last validation.
  Duration final_validation_limit = std::chrono::seconds(120);
  // Instead, with tasks. An island that scores one is hung if no result comes for so long.
  Duration final_evaluation_limit = std::chrono::hours(1);
  int64_t decisions_kept = 256;  // per job
  int64_t max_members = 16384;   // names of both kinds; then old ones are forgotten
  // With so many, what follows from their coming and going is decided for several of them at once,
  // 50 us a member later.
  int64_t many_members = 256;
  // All workers that lead no island together send so many at most;
  // docs/design/shell.md.
  int64_t heartbeats_per_second_max = 2000;
  int64_t max_jobs = 4096;  // that have not ended
  // A plan that could not be made is tried again so often; one that an island requests itself is
  // not made more often.
  Duration plan_retry = std::chrono::seconds(30);
  // A request to the planner without an answer is repeated after so long.
  Duration plan_limit = std::chrono::seconds(60);
  // Another plan replaces one that works if its predicted step is shorter by so much: both steps
  // as the planner sees them with what is measured now, where it says so.
  double plan_gain = 0.05;
  // Workers are grouped without an answer to GroupWorkers after so long.
  Duration grouping_limit = std::chrono::seconds(120);
  // A parameter server that has been attached for so long gets shards of jobs that run.
  Duration rebalance_after = std::chrono::seconds(10);
  // A parameter server that has been unavailable for so long is dropped where others have copies of
  // all that it held. Longer than it takes to detect a failed server: of two that fail at about the
  // same time, the second one is waited for.
  Duration copy_grace = std::chrono::seconds(20);
  std::vector<DeviceQuota> quotas = {};  // of who submits jobs
};

// ------------------------------------------------------------------------------------ events ----

// The member's newest connection is closed. Not reported for a connection that a newer one of the
// same name has replaced.
struct ConnectionLost {
  MemberKind kind = MemberKind::kWorker;
  NodeId name;
  Incarnation incarnation = 0;
  bool revoked = false;  // the coordinator closed it: its access has been revoked
  bool left = false;     // the member closed it in order: it has ended
};

// Requests of users. `request_id` comes back in the Reply; every request gets exactly one, in the
// Step that it came in.
struct SubmitJob {
  int64_t request_id = 0;
  JobSpec spec;
  int64_t number = 0;      // of the job's id, drawn at random; the next one that is free is given
  std::string owner = {};  // the user's name by its certificate; empty: not known
};
// kAdopt: take over a job that this coordinator does not know from the servers that hold it.
// kRefill: what a server had of the job is lost; its shards are filled from an island.
// kNoteExport: a version has been exported.
enum class JobCommand { kPause, kResume, kCancel, kRemove, kAdopt, kRefill, kNoteExport };
struct ControlJob {
  int64_t request_id = 0;
  JobId job;
  JobCommand command = JobCommand::kPause;
  bool force = false;            // kRemove: cancel it first, where it has not ended
  NodeId server = {};            // kRefill
  Version version = kNoVersion;  // kNoteExport
};
// The job's specification with other values of fields that may change while it runs (settings.h).
struct ChangeSettings {
  int64_t request_id = 0;
  JobId job;
  JobSpec spec;
  std::string changes;  // for the log
};
// A parameter server is to hold no shards, a worker to have no work; or they may again.
struct DrainMember {
  int64_t request_id = 0;
  std::string name;  // "worker/NAME" or "paramserver/NAME" where both exist
  bool drain = true;
};

// The answer to MakePlan; ignored if another request of the island has followed.
struct PlanMade {
  JobId job;
  IslandId island = 0;
  int64_t request = 0;
  absl::StatusOr<IslandPlan> plan = absl::UnknownError("no plan");
  int64_t current_step_ns = 0;  // of MakePlan::current, as it is seen now; 0: unknown
  // Where prices decide: what counts of the plan and of MakePlan::current instead of their steps;
  // the less the better. 0: the steps count.
  double rank = 0;
  double current_rank = 0;
  std::vector<std::pair<NodeId, std::string>> left_out;  // workers that cannot be used, and why

  template <class V>
  void VisitFields(V& v) {
    v(job, island, request, plan, current_step_ns, rank, current_rank, left_out);
  }
};

// Sites of workers whose operators declare none. A worker that is not named keeps its site.
// `rates`: as measured, replacing all before, unless empty.
struct FoundSite {
  NodeId worker;
  std::string site;
  std::string source;  // "measured: 0.3 ms, 940 Mbit/s inside; ..."
};
struct SitesFound {
  std::vector<FoundSite> workers;
  SiteRates rates = {};
};

// The answer to GroupWorkers; SitesFound comes before it.
struct WorkersGrouped {
  JobId job;
  int64_t request = 0;
  IslandScope island_scope = IslandScope::kAll;  // kWorker, kSite or kAll
  std::string reason;
};

// Reports that what is known of these workers, or of the link between them, has changed for good: a
// plan made now may be better. `unusable`: the plan in force cannot be set up with them. The newest
// change of a subject replaces those before; `size`, from 1, orders those of several.
struct ProfileChanged {
  std::vector<NodeId> workers;
  std::string reason;
  bool unusable = false;
  std::string subject = {};  // "link a > b"; empty: the reason itself
  double size = 1;           // "2 times slower"
};

// The coordinator itself stalled (its machine, its disk, its queue) and is late by so much more
// than before: heartbeats that came meanwhile are still unread, so no member is evicted for silence
// within the next heartbeat's time, and no island is found without progress for this time.
struct Stalled {
  Duration late{0};
};

// The deadline of the last Actions has come. Always allowed.
struct Tick {};

using CoordinatorEvent =
    std::variant<FromWorker, FromServer, ConnectionLost, SubmitJob, ControlJob, ChangeSettings,
                 DrainMember, PlanMade, SitesFound, WorkersGrouped, ProfileChanged, Stalled, Tick>;

// ----------------------------------------------------------------------------------- actions ----

struct Reply {
  int64_t request_id = 0;
  absl::Status status;
  JobId job;
};

// Make a plan for an island of these workers, the first of which leads: one PlanMade. A later
// request for the same island replaces an earlier one that has not been begun.
struct MakePlan : PlanRequest {
  JobId job;
  IslandId island = 0;
  int64_t request = 0;
  bool busy = false;  // they are in an island that runs, or ran: there is no time to measure links
  std::string reason;
  std::optional<IslandPlan> current;  // in force, of these workers

  template <class V>
  void VisitFields(V& v) {
    v(static_cast<PlanRequest&>(*this), job, island, request, busy, reason, current);
  }
};

// Which of these workers share an island is to be measured (layout.island = "site") or decided
// ("auto"): one WorkersGrouped. A later request of the same job replaces an earlier one.
struct GroupWorkers : PlanRequest {
  JobId job;
  int64_t request = 0;

  template <class V>
  void VisitFields(V& v) {
    v(static_cast<PlanRequest&>(*this), job, request);
  }
};

struct CoordinatorActions {
  std::vector<StoreWrite> persist;  // one transaction; first
  std::vector<MakePlan> plans;
  std::vector<GroupWorkers> groups;
  std::vector<ToWorker> to_workers;
  std::vector<ToServer> to_servers;
  std::vector<Reply> replies;
  Instant next_deadline = kNever;
};

inline constexpr size_t kJobsOnPage = 100;  // that have ended

class CoordinatorCore {
 public:
  // REQUIRES: `cluster` is the stored EpochRecord's and `epoch` is larger than its, if there is
  // one.
  CoordinatorCore(CoordinatorOptions options, ClusterId cluster, int64_t epoch);
  ~CoordinatorCore();
  CoordinatorCore(CoordinatorCore&&) noexcept;
  CoordinatorCore& operator=(CoordinatorCore&&) noexcept;

  // Takes over what an earlier process stored, in any order; EventRecords, LinkRecords and
  // DeviceRecords are skipped. An error says which record contradicts another: the store is
  // damaged, the core must not be used. `crashed`: the job that the earlier process was at when it
  // crashed fails in the first Step, so that it cannot end each process; a user may resume it.
  // REQUIRES: no Step was made.
  absl::Status Recover(Instant now, const std::vector<StoreRecord>& stored,
                       const JobId& crashed = "");

  // Everything that is known, stored and not, as bytes that a core of the same build takes in the
  // place of Recover: every Step that follows is the same there.
  std::string SaveWhole() const;
  // False: no SaveWhole of this build has made them, and the core must not be used.
  bool LoadWhole(absl::string_view bytes);

  // `now` never goes back.
  CoordinatorActions Step(Instant now, const CoordinatorEvent& event);

  std::vector<MemberView> Members(Instant now) const;
  // In order of submission: those that have not ended, and the newest of those that have.
  struct JobPage {
    std::vector<JobSummary> jobs;
    int64_t before = 0;  // for the page before, of older jobs that have ended; 0: there are none
  };
  // `before`: of a page; 0: the newest one. At most so many that have ended.
  JobPage Jobs(int64_t before = 0, size_t ended_most = kJobsOnPage) const;
  std::optional<JobView> Job(Instant now, const JobId& job) const;
  // Decisions that are kept of rounds after this one, oldest first and without their Gram matrices,
  // at most so many, the certificates of those who have signed their contributions, and the digest
  // of the job's newest decision.
  struct DecisionsPage {
    std::vector<DecisionRecord> decisions;
    std::vector<std::string> certificates;
    std::string newest_digest;
  };
  std::optional<DecisionsPage> Decisions(const JobId& job, int64_t after_round, size_t most) const;
  // Parts of the above, without the work for the rest.
  std::optional<JobSummary> Summary(const JobId& job) const;
  std::optional<JobState> FindState(const JobId& job) const;
  std::vector<std::pair<JobId, JobState>> JobStates() const;  // in order of submission
  // In force, whole; number 0: there is none.
  IslandPlan Plan(const JobId& job, IslandId island) const;
  // Jobs that members hold and this coordinator does not know.
  std::vector<OrphanView> Orphans() const;
  // Returns what the next plan of each of the job's islands would be requested with now. Islands
  // without a worker, and those that train without plans, have none.
  std::vector<MakePlan> PlanRequests(const JobId& job) const;
  // Why the plan in force would be kept although this one was made; empty: it would not.
  std::string WhyPlanIsKept(const PlanMade& made) const;
  // Attached workers that no job has, and that a job of this layout does not leave out.
  std::vector<PlanMember> IdleWorkers(const LayoutSpec& layout) const;
  // Members that have tried to attach within the last minute and belong to another cluster.
  std::vector<ForeignMemberView> ForeignMembers(Instant now) const;
  const ClusterId& cluster() const;
  // Grows beyond the constructor's where a member has followed a newer one. `StoreAge` is not empty
  // where the store lacks changes that members have seen: it names the member.
  int64_t epoch() const;
  const std::string& StoreAge() const;

  // Returns how many jobs the newest Step had a look at to change them: its cost.
  int64_t JobsExamined() const;

  // Every record that the core has the store hold, but EventRecords, in the order of their keys.
  // For tests: equals what all writes so far add up to.
  std::vector<StoreRecord> Stored() const;
  // How often any job has been looked at so far: a count of what events cost. For tests.
  int64_t JobVisits() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

const char* Name(JobState state);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_CORE_H_
