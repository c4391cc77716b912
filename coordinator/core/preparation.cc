#include "coordinator/core/preparation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/number_text.h"
#include "common/plural.h"
#include "common/protocol/experts.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/members.h"
#include "coordinator/core/rounds/site_data.h"
#include "coordinator/core/rounds/site_exchange.h"
#include "coordinator/core/shards/placement.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/sharing/spares.h"

namespace atl::coord {
namespace {

std::vector<Worker*> Candidates(State& s, const Job& job) {
  std::vector<Worker*> candidates;
  for (const NodeId& name : s.candidates) {
    Worker* member = s.FindWorker(name);
    if (member->candidate_for == job.id()) candidates.push_back(member);
  }
  return candidates;
}

std::vector<NodeId> ListWorkerNames(const std::vector<Worker*>& workers) {
  std::vector<NodeId> names;
  for (const Worker* worker : workers) names.push_back(worker->record.name);
  return names;
}

// "; no answer yet from w2, w3", of candidates that have neither prepared nor refused.
std::string NoAnswerYet(const std::vector<Worker*>& candidates) {
  constexpr size_t kNamed = 8;
  std::vector<NodeId> names;
  for (const Worker* member : candidates) {
    if (!member->prepared) names.push_back(member->record.name);
  }
  if (names.empty()) return "";
  const size_t count = names.size();
  names.resize(std::min(count, kNamed));
  return absl::StrCat("; no answer yet from ", absl::StrJoin(names, ", "),
                      count > kNamed ? absl::StrCat(" and ", count - kNamed, " more") : "");
}

std::string Refusals(const State& s, const Job& job, int64_t& count) {
  constexpr int64_t kNamed = 8;
  std::string text;
  count = 0;
  for (const auto& [name, worker] : s.workers) {
    auto it = worker.refused.find(job.id());
    if (!worker.attached || it == worker.refused.end() || ++count > kNamed) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", name, ": ", it->second);
  }
  if (count > kNamed) absl::StrAppend(&text, "; and ", count - kNamed, " more");
  return text;
}

// The facts that most candidates found; those of the first by name among equals.
const JobFacts& Majority(const std::vector<Worker*>& prepared) {
  std::vector<std::pair<const JobFacts*, int64_t>> votes;  // few that differ, of many workers
  for (const Worker* member : prepared) {
    const auto same = std::find_if(votes.begin(), votes.end(), [&](const auto& entry) {
      return *entry.first == *member->prepared;
    });
    if (same == votes.end()) {
      votes.emplace_back(&*member->prepared, 1);
    } else {
      ++same->second;
    }
  }
  return *std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
            return a.second < b.second;
          })->first;
}

bool PlaceModel(State& s, Job& job, const JobFacts& facts, const std::vector<SiteFacts>& site_facts,
                const std::vector<Worker*>& workers) {
  if (s.held.contains(job.id())) {
    job.waiting_for = absl::StrCat(
        "parameter servers hold this job already, of a time that this coordinator's store does not "
        "know: atoll adopt ",
        job.id(), " takes it over");
    return false;
  }
  if (job.spec().outer.fragments > std::ssize(facts.layers)) {
    FailJob(s, job,
            absl::StrCat("outer.fragments = ", job.spec().outer.fragments, ": must be at most ",
                         facts.layers.size(), ", the model's layers with embedding and head"));
    return false;
  }
  auto shards = IsBranching(job) ? CutAsOrigin(s, job.spec(), facts)
                                 : CutShards(facts.layers, s.options.max_shard_bytes,
                                             CutsByExpert(job.spec().outer));
  if (!shards.ok()) {
    FailJob(s, job, std::string(shards.status().message()));
    return false;
  }
  const std::vector<const Worker*> leaders(workers.begin(), workers.end());
  const std::vector<PlacementServer> servers = ListServers(s, leaders, [](const Server& server) {
    return server.attached && !server.record.draining && !server.site_only;
  });
  // A server that was there when the job was scheduled may be unavailable by now.
  if (std::string missing = TooFewServers(s, job); !missing.empty()) {
    job.waiting_for = std::move(missing);
    return false;
  }
  auto placement = PlaceShards(*std::move(shards), servers, ServerPeakBytesPerElement(job.spec()),
                               job.spec().outer.shard_copies);
  if (!placement.ok()) {
    job.waiting_for = std::string(placement.status().message());
    return false;
  }
  JobRecord& record = job.EditRecord();
  record.facts = facts;
  record.site_facts = site_facts;
  record.shards = *std::move(placement);
  LinkHolders(s, job);
  s.Log(job.id(), Severity::kInfo,
        absl::StrCat(CountText(std::ssize(record.shards), "shard"), " of ",
                     CountText(std::ssize(facts.layers), "layer"), " on ",
                     CountText(std::ssize(job.rounds.links), "parameter server"),
                     ", the fullest holds ", NumberText(MaxOverMean(record.shards), 3),
                     " times the mean"));
  return true;
}

}  // namespace

void RefuseWorker(State& s, Job& job, Worker& worker, const std::string& reason) {
  worker.refused[job.id()] = reason;
  s.SetCandidate(worker, "");
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat("worker ", worker.record.name, " cannot run the job: ", reason));
}

std::string TooFewServers(const State& s, const Job& job) {
  const int64_t needed = std::max(job.spec().outer.min_servers, job.spec().outer.shard_copies);
  const auto attached = std::count_if(s.servers.begin(), s.servers.end(), [](const auto& entry) {
    const Server& server = entry.second;
    return server.attached && !server.record.draining && !server.site_only;
  });
  if (attached >= needed) return "";
  return absl::StrCat("waiting for parameter servers: ", needed, " needed, ", attached,
                      " attached");
}

void OnJobPrepared(State& s, Worker& worker, const JobPrepared& message) {
  // Also when it says it again, to a coordinator that has been restarted.
  if (!message.profiles.empty()) {
    worker.measured_for = message.job;
  } else if (worker.measured_for == message.job) {
    worker.measured_for.clear();
  }
  Job* job = s.FindJob(message.job);
  const bool spare = worker.spare_for == message.job;
  if (job == nullptr || worker.prepared || (!spare && worker.candidate_for != message.job)) return;
  if (const absl::Status status = Validate(message.facts); !status.ok()) {
    if (spare) DropSpare(s, worker, "");
    return RefuseWorker(s, *job, worker, CleanText(std::string(status.message())));
  }
  if (spare) return OnSparePrepared(s, *job, worker, message.facts);
  worker.prepared = message.facts;
}

void OnJobRefused(State& s, Worker& worker, const JobRefused& message) {
  Job* job = s.FindJob(message.job);
  if (job == nullptr || job->ended()) return;
  const State::Assignment assignment = s.FindAssignment(worker);
  const std::string reason = CleanText(message.reason);
  if (assignment.job == job) {
    LoseWorker(s, assignment, worker.record.name,
               {absl::StrCat("it cannot run the job: ", reason)});
  } else if (worker.candidate_for != message.job && worker.spare_for != message.job) {
    return;
  }
  // The cause that it found when it was a candidate before may have been removed since.
  if (message.request != 0 && message.request < worker.candidature) return;
  DropSpare(s, worker, "");
  RefuseWorker(s, *job, worker, reason);
}

bool AdvancePreparing(State& s, Job& job) {
  const int64_t needed = NeededWorkers(job.spec());
  const std::vector<Worker*> candidates = Candidates(s, job);
  std::vector<Worker*> prepared;
  for (Worker* member : candidates) {
    if (member->prepared) prepared.push_back(member);
  }
  int64_t refused = 0;
  const std::string refusals = Refusals(s, job, refused);
  const int64_t enough = static_cast<int64_t>(prepared.size());
  job.waiting_for =
      absl::StrCat("waiting for workers to open the model and the data: ", enough, " have of ",
                   CountText(static_cast<int64_t>(candidates.size()), "candidate"), ", ", needed,
                   " needed", NoAnswerYet(candidates), refused > 0 ? "; refused by " : "", refusals,
                   WhoMeasures(s, ListWorkerNames(candidates)));
  if (candidates.empty() && refused >= needed) {
    FailJob(s, job, absl::StrCat("no worker can run it: ", refusals));
    return true;
  }
  const bool all_answered = PreparingDeadline(s, job) == kNever;
  if (refused > 0 && all_answered && static_cast<int64_t>(candidates.size()) < needed) {
    // It cannot start with these; other jobs may.
    for (Worker* member : candidates) {
      s.SetCandidate(*member, "");
    }
    s.SetState(job, JobState::kQueued, absl::StrCat("too few workers can run it: ", refusals));
    return true;
  }
  if (enough < needed || !all_answered) return false;
  const JobFacts facts = Majority(prepared);
  std::vector<SiteFacts> site_facts;
  bool dissent = false;
  for (Worker* member : prepared) {
    const std::string difference = DifferenceAt(job.spec(), facts, *member, site_facts);
    if (difference.empty()) continue;
    dissent = true;
    RefuseWorker(s, job, *member, absl::StrCat("it differs from the other workers: ", difference));
  }
  if (dissent) return true;  // are they still enough?
  if (!Grouped(s, job, facts, prepared)) return false;
  if (!PlaceModel(s, job, facts, site_facts, prepared)) return job.ended();
  s.SetState(job, JobState::kInitializing, "the model is placed");
  for (Worker* member : prepared) Join(s, job, *member);
  return true;
}

bool FailIfRefused(State& s, Job& job) {
  if (job.islands.empty() || job.occupied_islands() > 0 || !Candidates(s, job).empty()) {
    return false;
  }
  // A worker that is merely unavailable may come back.
  for (const auto& [id, island] : job.islands) {
    const Worker* worker = s.FindWorker(island.worker);
    if (worker == nullptr || !worker->refused.contains(job.id())) return false;
  }
  int64_t refused = 0;
  const std::string at = job.progress.version == kNoVersion
                             ? ""
                             : absl::StrCat("stopped at version ", job.progress.version, ": ");
  FailJob(s, job, absl::StrCat(at, "no worker can run it: ", Refusals(s, job, refused)));
  return true;
}

std::string RefusedBy(const State& s, const Job& job) {
  int64_t refused = 0;
  const std::string refusals = Refusals(s, job, refused);
  return refused > 0 ? absl::StrCat("; refused by ", refusals) : "";
}

bool AdmitLateWorkers(State& s, Job& job) {
  bool changed = false;
  const auto candidates = Candidates(s, job);
  if (candidates.empty() || !CanAssignWorkers(s, job)) return false;
  for (Worker* member : candidates) {
    if (!member->prepared) continue;
    changed = true;
    std::vector<SiteFacts> site_facts = job.record.site_facts;
    const std::string difference = DifferenceAt(job.spec(), *job.record.facts, *member, site_facts);
    if (site_facts != job.record.site_facts) job.EditRecord().site_facts = std::move(site_facts);
    if (difference.empty()) {
      Join(s, job, *member);
    } else {
      RefuseWorker(s, job, *member,
                   absl::StrCat("it differs from the other workers: ", difference));
    }
  }
  return changed;
}

Instant PreparingDeadline(const State& s, const Job& job) {
  Instant deadline = kNever;
  for (const NodeId& name : s.candidates) {
    const Worker& member = *s.FindWorker(name);
    if (member.candidate_for != job.id() || member.prepared) continue;
    const Instant by = member.requested_at + s.options.prepare_limit;
    if (by > s.now) deadline = std::min(deadline, by);
    // Who has had its time is not waited for; it joins when it is done.
  }
  return deadline;
}

void PumpCandidates(State& s) {
  for (const NodeId& name : s.candidates) {
    Worker& member = *s.FindWorker(name);
    if (member.prepared || s.now < member.request_again_at) continue;
    const Job* job = s.FindJob(member.candidate_for);
    if (job == nullptr) continue;
    member.request_again_at = s.now + kRetryInterval;
    NoteMemberDeadline(s, member);
    s.Send(member, PrepareJob{job->id(), SpecFor(*job, member), member.candidature});
  }
}

}  // namespace atl::coord
