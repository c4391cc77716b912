#include "coordinator/core/members.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "common/protocol/node_name.h"
#include "coordinator/core/adoption.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/names.h"
#include "coordinator/core/relays.h"
#include "coordinator/core/removal.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/rounds/site_exchange.h"
#include "coordinator/core/rounds/validation.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/server_holdings.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/sharing/spares.h"

namespace atl::coord {
namespace {

// An incarnation follows the clock in milliseconds; a larger one is damage.
constexpr Incarnation kIncarnationMax = Incarnation{1} << 53;
constexpr size_t kMaxListed = 256;  // devices of one worker
constexpr size_t kMaxHeld = 4096;   // jobs of which a worker has a checkpoint
constexpr size_t kMaxForeign = 256;
constexpr int64_t kEpochsSpare = int64_t{1} << 24;  // of restarts after the newest

const char* KindName(MemberKind kind) {
  return kind == MemberKind::kWorker ? "worker" : "parameter server";
}

void SendTo(State& s, const MemberId& key, Incarnation incarnation, const Refused& refused) {
  if (key.kind == MemberKind::kWorker) {
    s.out.to_workers.push_back({key.name, incarnation, s.epoch, refused, s.cluster});
  } else {
    s.out.to_servers.push_back({key.name, incarnation, s.epoch, refused, s.cluster});
  }
}

// A member of another cluster: it follows that one's coordinator, and would lose by this one's
// orders.
void NoteForeign(State& s, const MemberId& key, const ClusterId& cluster) {
  auto it = s.foreign.find(key);
  if (it == s.foreign.end() && s.foreign.size() >= kMaxForeign) {
    s.foreign.erase(std::min_element(s.foreign.begin(), s.foreign.end(), [](auto& a, auto& b) {
      return a.second.last_heartbeat < b.second.last_heartbeat;
    }));
  }
  if (it == s.foreign.end() || it->second.cluster != cluster) {
    s.Log("", Severity::kWarning,
          absl::StrCat(KindName(key.kind), " ", key.name, " belongs to cluster ",
                       CleanText(cluster, 32),
                       " and refuses this coordinator, which is of cluster ", s.cluster));
  }
  s.foreign[key] = {CleanText(cluster, 32), s.now};
}

// Changes that a coordinator of this epoch can have given. Another mark is damaged, or made up.
bool IsPlausible(const ClusterMark& mark) {
  return mark.epoch < kMaxEpoch - kEpochsSpare && mark.sequence >> 32 <= mark.epoch;
}

// Returns whether what the member reports of the store's age counts. The store names the members
// that it had; of others, which may have come since, two must agree.
bool IsWitness(State& s, const MemberId& key, bool known) {
  if (known) return true;
  s.age_witnesses.insert(key);
  return s.age_witnesses.size() > 1;
}

// A member that this process has never welcomed has followed this epoch or a newer one, or has seen
// a later change than the store ended with: the store has lost changes, or is an older copy. Beyond
// that epoch members follow again, but the jobs of the store wait for a person. `known`: to the
// store.
void CheckStoreAge(State& s, const MemberId& key, bool known, const ClusterMark& mark) {
  if (!IsPlausible(mark)) {
    s.Log("", Severity::kWarning,
          absl::StrCat(KindName(key.kind), " ", key.name, " says that it has seen change ",
                       mark.sequence, " in epoch ", mark.epoch,
                       ", which no coordinator has made: what it remembers of its cluster is "
                       "damaged, and does not count"));
    return;
  }
  // It may have been here under another name.
  const bool seen_here = mark.epoch == s.epoch && mark.sequence <= s.sequence;
  if (mark.epoch >= s.epoch) {
    s.epoch = mark.epoch + 1;
    s.sequence = std::max(s.sequence, s.epoch << 32);
    s.epoch_dirty = true;
  }
  if (seen_here || mark.sequence <= s.opened_at) return;
  const std::string age = absl::StrCat(KindName(key.kind), " ", key.name, " has seen change ",
                                       mark.sequence, " of this cluster's store (epoch ",
                                       mark.epoch, "), this coordinator's ended with change ",
                                       s.opened_at, ": it is an older copy, or has lost changes");
  if (!IsWitness(s, key, known)) {
    s.Log("", Severity::kWarning,
          absl::StrCat(age, "; this coordinator does not know it: another member has to say so"));
    return;
  }
  if (s.store_age.empty()) s.Log("", Severity::kError, age);
  s.store_age = age;
  for (auto& [number, job] : s.jobs) SetOutdated(s, job, age);
}

void DetachServer(State& s, const NodeId& server) {
  s.lost_member = true;
  s.touched_by = s.now;  // its copies take over at once, however many members there are
  for (const int64_t number : ListJobsOn(s, server)) {
    Job& job = *s.jobs.Find(number);
    s.TouchWhole(job);
    auto link = job.rounds.links.find(server);
    if (link == job.rounds.links.end()) continue;
    link->second.known = link->second.assigned = false;
    link->second.described.reset();
  }
  ForgetHeld(s, server);
}

// The jobs that the worker has a part in, or reports to have one in.
void TouchJobs(State& s, const Worker& worker) {
  s.lost_member = true;
  if (Job* job = s.FindAssignment(worker).job) s.TouchWhole(*job);
  for (const JobId& id : {worker.candidate_for, worker.progress ? worker.progress->job : JobId(),
                          worker.following ? worker.following->job : JobId()}) {
    if (Job* job = s.FindJob(id)) s.TouchWhole(*job);
  }
}

void DetachWorker(State& s, Worker& worker, const Loss& loss) {
  TouchJobs(s, worker);
  s.SetCandidate(worker, "");
  DropSpare(s, worker, loss.text());
  const State::Assignment assignment = s.FindAssignment(worker);
  if (assignment.job != nullptr) LoseWorker(s, assignment, worker.record.name, loss);
  worker.progress.reset();
  s.SetFollowing(worker, std::nullopt);
  worker.measuring.clear();
  worker.utilisation = 0;
  worker.leaving = false;
}

void Detach(State& s, Member& member, const Loss& loss) {
  member.attached = false;
  // After a restart it may be any job that expects the member.
  if (member.reattach_by) s.reconcile_by = s.now;
  s.server_sites.clear();
  member.detached_at = s.now;
  RemoveFromRelays(s, member);
  member.reattach_by.reset();
  member.reason = loss.text();
  s.Log(
      "", loss.left ? Severity::kInfo : Severity::kWarning,
      absl::StrCat(KindName(member.record.kind), " ", member.record.name, " ",
                   loss.left ? DescribeLoss(loss) : absl::StrCat("is unavailable: ", loss.reason)));
  Worker* worker = AsWorker(member);
  if (worker != nullptr) return DetachWorker(s, *worker, loss);
  DetachServer(s, member.record.name);
}

// Why a hello like this one is refused; nothing: it may be accepted.
std::optional<Refused> Refusal(State& s, const MemberId& key, Incarnation incarnation,
                               const std::string& software_version, const ClusterMark& mark) {
  if (!IsNodeName(key.name)) {
    return Refused{
        "a name is 1 to 63 letters, digits, '-', '_' and '.', and begins with none of '-' and '.'",
        true};
  }
  if (incarnation <= 0 || incarnation > kIncarnationMax) {
    return Refused{
        absl::StrCat("incarnation ", incarnation, " is not one of 1 to ", kIncarnationMax,
                     ": is its clock right, and the file incarnation in its --state-dir?"),
        true};
  }
  if (!mark.cluster.empty() && mark.cluster != s.cluster) {
    NoteForeign(s, key, mark.cluster);
    return Refused{absl::StrCat("it belongs to cluster ", CleanText(mark.cluster, 32),
                                ", this coordinator is of cluster ", s.cluster),
                   false};
  }
  if (!s.options.software_version.empty() && software_version != s.options.software_version) {
    return Refused{
        absl::StrCat("it is of version ", CleanText(software_version, 64), ", the coordinator of ",
                     s.options.software_version, ": all daemons must be of one version"),
        true};
  }
  return std::nullopt;
}

// Why a process of the name of an attached member is refused, also logged once. The connection of a
// process that has ended is lost at once, or its heartbeats are missed soon.
std::string DescribeRival(State& s, Member& holder, Incarnation incarnation) {
  const std::string& name = holder.record.name;
  const char* kind = KindName(holder.record.kind);
  const std::string why = absl::StrCat(
      "another ", kind, " of the name ", name,
      " sends heartbeats: if it is another machine, or has another --state-dir, one of them needs "
      "another --name");
  if (std::exchange(holder.rival, incarnation) != incarnation) {
    s.Log("", Severity::kWarning,
          absl::StrCat(kind, " ", name, " of incarnation ", incarnation, " is refused: ", why));
  }
  return why;
}

// The member that says hello, attached; null if it is refused. `fresh`: a process that has not
// attached since the coordinator's start.
Member* Attach(State& s, const MemberId& key, Incarnation incarnation,
               const std::string& software_version, const ClusterMark& mark, bool& fresh) {
  const auto refuse = [&](std::string reason, bool final = true) {
    SendTo(s, key, incarnation, Refused{std::move(reason), final});
    return nullptr;
  };
  if (const auto refusal = Refusal(s, key, incarnation, software_version, mark)) {
    return refuse(refusal->reason, refusal->final);
  }
  const bool known = s.FindMember(key) != nullptr;
  if (!known) {
    if (!MakeRoomForName(s)) {
      return refuse(absl::StrCat("the coordinator keeps at most ", s.options.max_members,
                                 " names, and all of them are in use"));
    }
  }
  Member& member = s.AddMember(key);
  Worker* const worker = AsWorker(member);
  s.foreign.erase(key);
  if (!member.welcomed) CheckStoreAge(s, key, known, mark);
  const bool set_back = incarnation < member.record.incarnation;
  if (set_back && (member.attached || s.now < member.detached_at + kNameHeld)) {
    const std::string why =
        absl::StrCat("a newer process of the name ", key.name, " has been here: incarnation ",
                     member.record.incarnation, ", not ", incarnation);
    if (member.attached) return refuse(why);
    SendTo(s, key, incarnation,
           Refused{absl::StrCat(why, "; the name is free ", Seconds(kNameHeld),
                                " s after that one has ended"),
                   false});
    return nullptr;
  }
  if (member.attached && incarnation > member.record.incarnation) {
    return refuse(DescribeRival(s, member, incarnation), false);
  }
  fresh = incarnation != member.record.incarnation || !member.incarnation_seen;
  if (incarnation != member.record.incarnation) {
    const std::string reason =
        set_back ? absl::StrCat("replaced by a process of incarnation ", incarnation,
                                ", after a clock that was ahead or a lost --state-dir")
                 : absl::StrCat("replaced by a newer process, incarnation ", incarnation);
    const bool assigned = worker != nullptr &&
                          (s.FindAssignment(*worker).job != nullptr || !worker->spare_for.empty());
    if (assigned) Detach(s, member, {reason});
    member.record.incarnation = incarnation;
    if (worker != nullptr) worker->refused.clear();
    if (worker != nullptr) worker->measured_for.clear();
    s.dirty_members.insert(key);
  }
  if (!member.attached) {
    member.attached_at = s.now;
    if (worker != nullptr) worker->has_beaten = false;
    s.Log("", Severity::kInfo,
          absl::StrCat(KindName(key.kind), " ", key.name, " attached, incarnation ", incarnation));
  }
  member.attached = member.incarnation_seen = member.welcomed = true;
  member.reattach_by.reset();
  member.last_heartbeat = s.now;
  member.reason = "attached";
  member.software_version = CleanText(software_version, 64);
  NoteMemberDeadline(s, member);
  return &member;
}

// The sender if it is attached and of the newest incarnation; else null, after a refusal is sent.
Member* Sender(State& s, const MemberId& key, Incarnation incarnation) {
  Member* member = s.FindMember(key);
  if (member != nullptr && incarnation < member->record.incarnation) {
    SendTo(s, key, incarnation, Refused{"a newer process of this name has been here", true});
    return nullptr;
  }
  if (member == nullptr || !member->attached || incarnation != member->record.incarnation) {
    const std::string why = member == nullptr ? "not seen before" : member->reason;
    SendTo(s, key, incarnation, Refused{absl::StrCat("say hello first: ", why), false});
    return nullptr;
  }
  member->last_heartbeat = s.now;
  return member;
}

// A leader's heartbeats show whether its island makes progress, so they stay frequent.
Duration ComputeHeartbeatInterval(const State& s, const Worker& worker) {
  if (s.FindAssignment(worker).leads) return s.options.heartbeat_interval;
  const int64_t per_second = s.options.heartbeats_per_second_max;
  return std::max<Duration>(s.options.heartbeat_interval,
                            std::chrono::seconds((s.CountMembers() + per_second - 1) / per_second));
}

// On a heartbeat of the worker, which may follow the old interval once more.
void UpdateHeartbeatInterval(State& s, Worker& worker) {
  const Duration interval = ComputeHeartbeatInterval(s, worker);
  worker.lease = std::max(worker.heartbeat_interval, interval) * kMissedHeartbeatsBeforeEviction;
  NoteMemberDeadline(s, worker);
  if (interval == worker.heartbeat_interval) return;
  worker.heartbeat_interval = interval;
  s.Send(worker, MakeWelcome(s, worker));
}

void WelcomeWorker(State& s, Worker& worker) {
  worker.heartbeat_interval = ComputeHeartbeatInterval(s, worker);
  worker.lease = worker.heartbeat_interval * kMissedHeartbeatsBeforeEviction;
  s.Send(worker, MakeWelcome(s, worker));
}

struct WorkerHandler {
  State& s;
  Worker& worker;

  void operator()(const WorkerHello&) {}  // Attach has it
  void operator()(const WorkerHeartbeat& m) {
    UpdateHeartbeatInterval(s, worker);
    OnHeartbeat(s, worker, m);
  }
  void operator()(const JobPrepared& m) { OnJobPrepared(s, worker, m); }
  void operator()(const JobRefused& m) { OnJobRefused(s, worker, m); }
  void operator()(const LeaseRequest& m) { OnLeaseRequest(s, worker, m); }
  void operator()(const PushRequest& m) { OnPushRequest(s, worker, m); }
  void operator()(const ValidationResult& m) { OnValidation(s, worker, m); }
  void operator()(const Leaving& m) {
    const Loss loss{CleanText(m.reason), /*left=*/true};
    TouchJobs(s, worker);
    if (!BeginLeaving(s, worker, loss)) Detach(s, worker, loss);
  }
  void operator()(const LinksMeasured&) {
  }                                      // coordinator/measurements/profile_registry.h keeps them
  void operator()(const StepTraced&) {}  // coordinator/trace_request_table.h waits for it
  void operator()(const WorkerLog& m) {
    const JobId job = s.FindJob(m.job) == nullptr ? "" : m.job;
    s.Log(job, Severity::kInfo,
          absl::StrCat("worker ", worker.record.name, ": ", CleanText(m.text)));
  }
};

struct ServerHandler {
  State& s;
  Server& server;

  void operator()(const ServerHello&) {}  // Attach has it
  void operator()(const ServerHeartbeat& m) { OnServerHeartbeat(s, server, m); }
  void operator()(const ShardsAssigned& m) { OnShardsAssigned(s, server, m); }
  void operator()(const PushStaged& m) { OnPushStaged(s, server, m); }
  void operator()(const Statistics& m) { OnStatistics(s, server, m); }
  void operator()(const RoundApplied& m) { OnRoundApplied(s, server, m); }
  void operator()(const ServerFault& m) { OnServerFault(s, server, m); }
  void operator()(const JobRemoved& m) { OnJobRemoved(s, server, m); }
  void operator()(const ShardsReceived& m) { OnShardsReceived(s, server, m); }
  void operator()(const BaseFetched& m) { OnBaseFetched(s, server, m); }
  void operator()(const JobDescribed& m) { OnJobDescribed(s, server, m); }
};

void OnWorkerHello(State& s, const FromWorker& from, const WorkerHello& hello) {
  bool fresh = false;
  auto* worker =
      static_cast<Worker*>(Attach(s, {MemberKind::kWorker, from.worker}, from.incarnation,
                                  hello.software_version, hello.mark, fresh));
  if (worker == nullptr) return;
  worker->devices = hello.devices;
  worker->peer_endpoint = CleanText(hello.peer_endpoint, kEndpointBytesMax);
  worker->more_peer_endpoints = hello.more_peer_endpoints;
  for (std::string& endpoint : worker->more_peer_endpoints) endpoint = CleanText(endpoint, 256);
  worker->peer_public_key = CleanText(hello.peer_public_key, 64);
  worker->site = CleanText(hello.site, 64);
  worker->certificate = hello.certificate;
  s.server_sites.clear();
  if (worker->devices.size() > kMaxListed) worker->devices.resize(kMaxListed);
  worker->held = hello.held;
  if (worker->held.size() > kMaxHeld) worker->held.resize(kMaxHeld);
  WelcomeWorker(s, *worker);
  TakeRelay(s, *worker, worker->peer_endpoint, hello);
  for (const JobId& job : worker->held) {
    if (s.removed.contains(job)) s.Send(*worker, ForgetJob{job});
  }
  // A message sent on the connection before may be lost with it.
  worker->request_again_at = s.now;
  NoteMemberDeadline(s, *worker);
  const State::Assignment assignment = s.FindAssignment(*worker);
  if (assignment.job == nullptr) return;
  if (assignment.leads) {
    assignment.job->orders.erase(assignment.island);
  } else {
    assignment.job->member_orders.erase(from.worker);
  }
}

void OnServerHelloMessage(State& s, const FromServer& from, const ServerHello& hello) {
  bool fresh = false;
  auto* server =
      static_cast<Server*>(Attach(s, {MemberKind::kServer, from.server}, from.incarnation,
                                  hello.software_version, hello.mark, fresh));
  if (server == nullptr) return;
  server->heartbeat_interval = s.options.heartbeat_interval;
  server->lease = server->heartbeat_interval * kMissedHeartbeatsBeforeEviction;
  s.SendToServer(from.server, MakeWelcome(s, *server));
  OnServerHello(s, *server, hello, fresh);
  TakeRelay(s, *server, server->endpoint, hello);
}

Instant ComputeLeaseExpiry(const Member& member) {
  return std::max(member.last_heartbeat + member.lease, member.evictions_suspended_until);
}

}  // namespace

std::string DescribeLoss(const Loss& loss) {
  return absl::StrCat(loss.left ? "left: " : "evicted: ", loss.reason);
}

void OnWorkerMessage(State& s, const FromWorker& from) {
  if (const auto* hello = std::get_if<WorkerHello>(&from.message)) {
    return OnWorkerHello(s, from, *hello);
  }
  auto* worker =
      static_cast<Worker*>(Sender(s, {MemberKind::kWorker, from.worker}, from.incarnation));
  if (worker != nullptr) std::visit(WorkerHandler{s, *worker}, from.message);
}

void OnServerMessage(State& s, const FromServer& from) {
  if (const auto* hello = std::get_if<ServerHello>(&from.message)) {
    return OnServerHelloMessage(s, from, *hello);
  }
  auto* server =
      static_cast<Server*>(Sender(s, {MemberKind::kServer, from.server}, from.incarnation));
  if (server != nullptr) std::visit(ServerHandler{s, *server}, from.message);
}

void OnConnectionLost(State& s, const ConnectionLost& lost) {
  Member* member = s.FindMember({lost.kind, lost.name});
  if (member == nullptr || !member->attached || member->record.incarnation != lost.incarnation) {
    return;
  }
  Detach(s, *member,
         {lost.revoked ? "its access is revoked"
          : lost.left  ? "it was stopped"
                       : "its connection is lost",
          lost.left});
}

void SuspendEvictions(State& s) {
  s.ForEachMember([&](Member& member) {
    member.evictions_suspended_until = s.now + member.heartbeat_interval;
  });
}

void NoteMemberDeadline(State& s, Member& member) {
  Instant next = kNever;
  if (member.attached) next = ComputeLeaseExpiry(member);
  if (member.reattach_by) next = std::min(next, *member.reattach_by);
  const Worker* worker = AsWorker(member);
  if (worker != nullptr && !worker->candidate_for.empty() && !worker->prepared) {
    next = std::min(next, worker->request_again_at);
  }
  if (next >= member.noted_deadline) return;
  member.noted_deadline = next;
  s.member_deadlines.insert({next, member.id()});
}

void ExpireMembers(State& s) {
  std::vector<Member*> due;
  while (!s.member_deadlines.empty() && s.member_deadlines.begin()->first <= s.now) {
    const auto [deadline, id] = *s.member_deadlines.begin();
    s.member_deadlines.erase(s.member_deadlines.begin());
    Member* member = s.FindMember(id);
    if (member == nullptr || member->noted_deadline != deadline) continue;
    member->noted_deadline = kNever;
    due.push_back(member);
    if (member->attached && s.now >= ComputeLeaseExpiry(*member)) {
      Detach(s, *member, {absl::StrCat("no heartbeat for ", Seconds(member->lease), " s")});
    } else if (member->reattach_by && s.now >= *member->reattach_by) {
      Detach(s, *member,
             {absl::StrCat("it did not come back within ", Seconds(s.options.reattach_grace),
                           " s of the coordinator's restart")});
    }
  }
  if (!due.empty()) PumpCandidates(s);
  for (Member* member : due) NoteMemberDeadline(s, *member);
}

Instant NextMemberDeadline(const State& s) {
  return s.member_deadlines.empty() ? kNever : s.member_deadlines.begin()->first;
}

}  // namespace atl::coord
