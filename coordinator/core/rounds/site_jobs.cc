#include "coordinator/core/rounds/site_jobs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "common/protocol/outer_optimizer.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/removal.h"
#include "coordinator/core/rounds/validation.h"
#include "coordinator/core/shards/placement.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {
namespace {

// From the end of a site's job, or a failed attempt, until the next one begins.
constexpr Duration kSiteJobRetry = std::chrono::seconds(10);
// An island of the job above that represents a site's servers has no process; its generation
// distinguishes its contributions.
constexpr Incarnation kSiteIncarnation = 1;

bool MaySetUp(const Server& server, const std::string& site) {
  return server.attached && server.site_only && !server.record.draining && server.site == site;
}

std::set<std::string> SitesWithServers(const State& s) {
  std::set<std::string> sites;
  for (const auto& [name, server] : s.servers) {
    if (!server.site.empty() && MaySetUp(server, server.site)) sites.insert(server.site);
  }
  return sites;
}

// Lists the workers at the site that take part in the job.
std::vector<NodeId> WorkersAt(const State& s, const Job& above, const std::string& site) {
  std::vector<NodeId> workers;
  for (const auto& [name, worker] : s.workers) {
    const bool there = worker.attached && !worker.leaves() && GetWorkerSite(worker) == site &&
                       !worker.refused.contains(above.id());
    if (!there) continue;
    const size_t devices = worker.devices.size();
    if (WhyNoPart(above.spec().layout, name, site, devices).empty()) workers.push_back(name);
  }
  return workers;
}

JobSpec MakeSiteSpec(const Job& above, const std::string& site) {
  JobSpec spec = above.spec();
  OuterSpec& outer = spec.outer;
  outer.optimizer = outer.site.optimizer;
  outer.parameters = outer.site.parameters;
  outer.learning_rate = outer.site.learning_rate;
  outer.momentum = outer.site.momentum;
  outer.merge = "mean";
  outer.max_share = 1;
  outer.contributes_to = above.id();
  outer.pull_encoding = Encoding::kFloat32;
  outer.shard_copies = 1;
  outer.min_islands = outer.min_servers = 1;
  spec.layout.sites = {site};
  spec.schedule.validate_every_rounds = 0;
  spec.model.initial_job.clear();
  return spec;
}

// On the site's own servers.
absl::StatusOr<std::vector<ShardDescriptor>> PlaceAt(const State& s, const Job& above,
                                                     const std::string& site, const JobSpec& spec) {
  const std::vector<PlacementServer> servers =
      ListServers(s, {}, [&](const Server& server) { return MaySetUp(server, site); });
  std::vector<ShardDescriptor> shards = above.record.shards;
  for (ShardDescriptor& shard : shards) {  // what was lost there is not lost here
    shard.filled_at = kNoVersion;
    shard.filled_age = 0;
  }
  return PlaceShards(std::move(shards), servers, ServerPeakBytesPerElement(spec));
}

JobId FreeSiteId(const State& s, const Job& above, const std::string& site) {
  const bool plain =
      !site.empty() && site.size() <= 32 && std::all_of(site.begin(), site.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
      });
  const std::string stem = absl::StrCat(above.id(), "-", plain ? site : "site");
  for (int64_t n = above.progress.plan_generation + 1;; ++n) {
    JobId id = absl::StrCat(stem, "-", n);
    if (s.FindJob(id) == nullptr && !s.removed.contains(id) && !s.held.contains(id)) return id;
  }
}

IslandRecord& OccupyIsland(State& s, Job& above, const std::string& site) {
  const auto vacant = std::find_if(above.islands.begin(), above.islands.end(),
                                   [&](const auto& entry) { return entry.second.site == site; });
  const IslandId id = vacant != above.islands.end() ? vacant->first : NextIslandId(s, above);
  IslandRecord& island = above.EditIsland(id);
  island.job = above.id();
  island.island = id;
  island.site = site;
  island.incarnation = kSiteIncarnation;
  island.outcome.reset();
  island.reason = "its site's parameter servers have begun";
  NewGeneration(above, island);
  return island;
}

// The site's workers belong to its job from now on. What they have not pushed is lost.
void FreeWorkers(State& s, const std::vector<NodeId>& workers, const Job& above) {
  for (const NodeId& name : workers) {
    Worker& worker = *s.FindWorker(name);
    const State::Assignment assignment = s.FindAssignment(worker);
    if (assignment.job == &above)
      LoseWorker(s, assignment, name, {"its site's parameter servers take over"});
    if (worker.candidate_for == above.id()) s.SetCandidate(worker, "");
  }
}

bool BeginSiteJob(State& s, Job& above, const std::string& site) {
  const JobSpec spec = MakeSiteSpec(above, site);
  auto placement = PlaceAt(s, above, site, spec);
  SiteAttempt& attempt = above.site_attempts[site];
  attempt.not_before = s.now + kSiteJobRetry;
  const std::string trouble(placement.status().message());
  if (std::exchange(attempt.trouble, trouble) != trouble && !trouble.empty()) {
    s.Log(above.id(), Severity::kWarning,
          absl::StrCat("site ", site, " has no job of its own: ", trouble));
  }
  if (!placement.ok()) return false;
  const JobId id = FreeSiteId(s, above, site);
  const int64_t number = s.jobs.next_number();
  Job& job = s.jobs.Add(number, id);
  const IslandRecord& island = OccupyIsland(s, above, site);
  JobRecord& record = job.EditRecord();
  record.job = id;
  record.number = number;
  record.spec = spec;
  record.facts = above.record.facts;
  record.island_scope = above.record.island_scope;
  record.grouping = above.record.grouping;
  record.site_facts = above.record.site_facts;
  record.shards = *std::move(placement);
  record.site = SiteJob{.site = site, .island = island.island, .generation = island.generation};
  job.EditProgress().job = id;
  job.ledger = above.ledger;
  LinkHolders(s, job);
  s.SetState(job, JobState::kInitializing,
             absl::StrCat("its servers fetch the parameters of job ", above.id()));
  s.Log(above.id(), Severity::kInfo,
        absl::StrCat("site ", site, " trains as job ", id, " with ",
                     CountText(std::ssize(job.rounds.links), "parameter server"),
                     " of its own, and takes part as island ", island.island));
  FreeWorkers(s, WorkersAt(s, above, site), above);
  const ProgressRecord& progress = above.progress;
  if (progress.validate_version != kNoVersion && progress.validators.empty()) {
    ChooseValidators(s, above);
  }
  return true;
}

bool BeginSiteJobs(State& s, Job& above) {
  if (above.spec().outer.site.rounds == 0 || above.progress.state != JobState::kRunning ||
      above.progress.version == kNoVersion || above.stale()) {
    return false;
  }
  RemoveOrphansBelow(s, above.id(), "is of a site that begins anew");
  for (const std::string& site : SitesWithServers(s)) {
    const auto attempt = above.site_attempts.find(site);
    if (attempt != above.site_attempts.end() && s.now < attempt->second.not_before) continue;
    if (FindSiteJob(s, above, site) != nullptr || WorkersAt(s, above, site).empty()) continue;
    if (BeginSiteJob(s, above, site)) return true;
  }
  return false;
}

// Servers of the job that do not come back as they were: which, and why. "": none.
std::string LostServer(const State& s, const Job& job) {
  for (const auto& [name, link] : job.rounds.links) {
    const Server* server = s.FindServer(name);
    const auto lost = [&](absl::string_view why) {
      return absl::StrCat("parameter server ", name, ": ", why);
    };
    if (server == nullptr) return lost("it is not known");
    if (server->record.draining) return lost("it is drained");
    if (!link.problem.empty()) return lost(link.problem);
    if (!server->attached && s.now >= server->detached_at + s.options.reattach_grace) {
      return lost(server->reason);
    }
  }
  return "";
}

// Why the site's job cannot go on. "": it can.
std::string WhyEnds(const State& s, const Job& job, const Job* above) {
  if (above == nullptr) return "the job above is removed";
  if (above->ended()) {
    return absl::StrCat("job ", above->id(), " is ", Name(above->progress.state));
  }
  if (above->stale()) return "";  // nothing is decided of either
  if (job.stale()) return "it is not known how far it was";
  const auto island = above->islands.find(job.record.site->island);
  if (island == above->islands.end() || island->second.generation != job.record.site->generation) {
    return absl::StrCat("island ", job.record.site->island, " of job ", above->id(),
                        " has begun anew");
  }
  return LostServer(s, job);
}

// Also of the job above, whose island it was.
void EndSiteJob(State& s, Job& job, Job* above, const std::string& reason) {
  const SiteJob site = *job.record.site;
  if (!job.ended()) StopJob(s, job, JobState::kCancelled, reason);
  RemoveTheJob(s, job, "is removed: it has ended at its site");
  if (above == nullptr || above->ended()) return;
  above->site_attempts[site.site].not_before = s.now + kSiteJobRetry;
  IslandRecord& island = above->EditIsland(site.island);
  if (island.incarnation == 0) return;
  island.incarnation = 0;
  island.reason = reason;
  if (island.generation == site.generation) {
    NewGeneration(*above, island);
  }
  std::erase(above->EditProgress().validators, site.island);
  above->vacant_since[site.island] = s.now;
  s.Log(above->id(), Severity::kWarning,
        absl::StrCat("the job of site ", site.site, " has ended: ", reason));
}

// Notes whether rounds of the job above wait for the site: they do if it has something to
// contribute, or islands.
void NoteReady(Job& job, Job& above) {
  const bool outstanding = above.ledger->Leased(job.record.site->island) > 0;
  const bool ready =
      job.progress.version != kNoVersion && (outstanding || job.occupied_islands() > 0);
  const IslandId id = job.record.site->island;
  if (above.islands.at(id).ready != ready) above.EditIsland(id).ready = ready;
}

// Workers that cannot run it cannot run the job above; pseudo-gradients that are not finite end
// that, too.
void EndFailed(State& s, Job& job, Job& above) {
  const std::string reason =
      absl::StrCat("site ", job.record.site->site, ": ", job.progress.reason);
  const bool diverged = job.rounds.not_finite_rounds > 0;
  for (auto& [name, worker] : s.workers) {
    const auto refused = worker.refused.find(job.id());
    if (refused != worker.refused.end()) worker.refused[above.id()] = refused->second;
  }
  EndSiteJob(s, job, &above, reason);
  if (diverged) FailJob(s, above, reason);
}

bool FollowJobAbove(State& s, Job& job) {
  if (job.record.removed) return false;
  Job* above = JobAbove(s, job);
  if (above != nullptr && job.progress.state == JobState::kFailed) {
    EndFailed(s, job, *above);
    return true;
  }
  if (const std::string why = WhyEnds(s, job, above); !why.empty()) {
    EndSiteJob(s, job, above, why);
    return true;
  }
  if (above->stale()) return false;
  NoteReady(job, *above);
  const bool paused = above->progress.state == JobState::kPaused;
  if (paused && job.progress.state == JobState::kRunning) {
    s.SetState(job, JobState::kPaused, above->progress.reason);
    return true;
  }
  if (!paused && job.progress.state == JobState::kPaused) {
    s.SetState(job, JobState::kRunning, above->progress.reason);
    return true;
  }
  return false;
}

const JobId& GetRootJobId(const Job& job) {
  return job.record.site ? job.spec().outer.contributes_to : job.id();
}

bool HasRelatives(const Job& job) { return job.record.site || job.spec().outer.site.rounds > 0; }

// what(other) of the job and of those that share its data: those of sites are never archived.
template <class Do>
void ForEachRelative(const State& s, const Job& job, Do what) {
  if (!HasRelatives(job)) return what(job);
  const Job* root = s.FindJob(GetRootJobId(job));
  if (root != nullptr) what(*root);
  s.jobs.ForEachLive([&](const Job& other) {
    if (&other != root && GetRootJobId(other) == GetRootJobId(job)) what(other);
  });
}

}  // namespace

Job* JobAbove(State& s, const Job& job) {
  Job* above = s.FindJob(job.spec().outer.contributes_to);
  return above == nullptr || above->record.removed ? nullptr : above;
}

const Job* JobAbove(const State& s, const Job& job) {
  const Job* above = s.FindJob(job.spec().outer.contributes_to);
  return above == nullptr || above->record.removed ? nullptr : above;
}

bool AdvanceSiteJobs(State& s, Job& job) {
  return job.record.site ? FollowJobAbove(s, job) : BeginSiteJobs(s, job);
}

Instant NextSiteJobDeadline(const State& s, const Job& job) {
  Instant next = kNever;
  for (const auto& [site, attempt] : job.site_attempts) {
    if (attempt.not_before > s.now) next = std::min(next, attempt.not_before);
  }
  if (!job.record.site || job.record.removed) return next;
  for (const auto& [name, link] : job.rounds.links) {
    const Server* server = s.FindServer(name);
    if (server == nullptr || server->attached) continue;
    const Instant lost = server->detached_at + s.options.reattach_grace;
    if (lost > s.now) next = std::min(next, lost);
  }
  return next;
}

bool IsSiteJobBelow(const Job& job, const Job& above) {
  return job.record.site && !job.record.removed && job.spec().outer.contributes_to == above.id();
}

const Job* FindSiteJob(const State& s, const Job& above, const std::string& site) {
  const Job* found = nullptr;
  s.jobs.ForEachLive([&](const Job& job) {
    if (found == nullptr && IsSiteJobBelow(job, above) && job.record.site->site == site) {
      found = &job;
    }
  });
  return found;
}

IslandId NextIslandId(const State& s, const Job& job) {
  IslandId next = 0;
  ForEachRelative(s, job, [&](const Job& other) {
    if (!other.islands.empty()) next = std::max(next, other.islands.rbegin()->first + 1);
  });
  return next;
}

int64_t TrainingIslands(const State& s, const Job& job) {
  int64_t count = 0;
  ForEachRelative(s, job, [&](const Job& other) {
    for (const auto& [id, island] : other.islands) {
      if (island.incarnation != 0 && island.site.empty()) ++count;
    }
  });
  return count;
}

void TouchRelatedJobs(State& s) {
  std::set<JobId> roots;
  for (const int64_t number : s.touched) {
    const Job* job = std::as_const(s.jobs).Find(number);
    if (job != nullptr && HasRelatives(*job)) roots.insert(GetRootJobId(*job));
  }
  if (roots.empty()) return;
  s.jobs.ForEachLive([&](Job& job) {
    if (roots.contains(GetRootJobId(job))) s.Touch(job);
  });
}

}  // namespace atl::coord
