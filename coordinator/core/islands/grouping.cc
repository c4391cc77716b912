#include "coordinator/core/islands/grouping.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace atl::coord {
namespace {

void Decide(State& s, Job& job, IslandScope island_scope, const std::string& reason) {
  JobRecord& record = job.EditRecord();
  record.island_scope = island_scope;
  record.grouping = absl::StrCat(island_scope == IslandScope::kSite  ? "an island for each site: "
                                 : island_scope == IslandScope::kAll ? "one island of all workers: "
                                                                     : "each worker is an island: ",
                                 CleanText(reason));
  job.grouping = Grouping();
  s.Log(job.id(), Severity::kInfo, record.grouping);
}

// Sites as measured.
bool Open(const Job& job, const std::vector<Worker*>& workers) {
  if (!job.record.grouping.empty()) return false;
  if (job.grouping.request != 0) return true;
  if (job.spec().layout.island == IslandScope::kAuto) return true;
  return job.spec().layout.island == IslandScope::kSite &&
         std::any_of(workers.begin(), workers.end(), [](const Worker* worker) {
           return GetWorkerSite(*worker).empty() && !worker->peer_endpoint.empty();
         });
}

void RequestGrouping(State& s, Job& job, const JobFacts& facts,
                     const std::vector<Worker*>& workers) {
  job.grouping = {++s.next_plan_request, s.now};
  GroupWorkers query;
  query.job = job.id();
  query.request = job.grouping.request;
  query.spec = job.spec();
  query.facts = facts;
  for (const Worker* worker : workers) {
    query.members.push_back({ToIslandMember(*worker), GetWorkerSite(*worker), worker->devices, {}});
  }
  s.out.groups.push_back(std::move(query));
}

// "10.0.0.1" of "tcp://10.0.0.1:7000", whatever relays follow; empty: no such thing.
absl::string_view HostFromEndpoint(absl::string_view endpoint) {
  endpoint = endpoint.substr(0, endpoint.find(','));
  const size_t scheme = endpoint.find("://"), port = endpoint.rfind(':');
  if (scheme == absl::string_view::npos || port <= scheme + 2) return "";
  return endpoint.substr(scheme + 3, port - scheme - 3);
}

// The site of the attached workers on this host; empty: there are none, or they differ.
std::string FindHostSite(const State& s, absl::string_view host) {
  std::string site;
  for (const auto& [name, worker] : s.workers) {
    if (!worker.attached || host.empty()) continue;
    if (HostFromEndpoint(worker.peer_endpoint) != host) continue;
    if (!site.empty() && site != GetWorkerSite(worker)) return "";
    site = GetWorkerSite(worker);
  }
  return site;
}

}  // namespace

const std::string& GetWorkerSite(const Worker& worker) {
  return worker.site.empty() ? worker.record.site : worker.site;
}

IslandMember ToIslandMember(const Worker& worker) {
  IslandMember member{worker.record.name, worker.record.incarnation, worker.peer_endpoint,
                      worker.peer_public_key};
  member.more_endpoints = worker.more_peer_endpoints;
  return member;
}

const std::string& GetServerSite(const State& s, const Server& server) {
  if (!server.site.empty()) return server.site;
  const auto [known, is_new] = s.server_sites.try_emplace(server.record.name);
  if (is_new) known->second = FindHostSite(s, HostFromEndpoint(server.endpoint));
  return known->second;
}

std::vector<const Worker*> ListIslandLeaders(const State& s, const Job& job) {
  std::vector<const Worker*> leaders;
  for (const auto& [id, island] : job.islands) {
    const Worker* worker = s.FindWorker(island.worker);
    if (island.incarnation != 0 && worker != nullptr) leaders.push_back(worker);
  }
  return leaders;
}

ServerAccessCost ComputeAccessCostFromLeaders(const State& s, const Server& server,
                                              const std::vector<const Worker*>& leaders) {
  std::vector<IslandLink> links;
  for (const Worker* leader : leaders) {
    IslandLink& link = links.emplace_back(IslandLink{GetWorkerSite(*leader)});
    double own = 1, fastest = 1;
    for (const auto& [endpoint, rate] : leader->pull_rates) {
      const double spread = rate.spread();
      if (endpoint == server.endpoint) link.bytes_per_s = rate.median(), own = spread;
      if (rate.median() <= link.fastest_bytes_per_s) continue;
      link.fastest_bytes_per_s = rate.median();
      fastest = spread;
    }
    link.doubt = own * fastest;
  }
  return ComputeServerAccessCost(GetServerSite(s, server), links, s.site_rates);
}

IslandScope GetIslandScope(const Job& job) {
  return job.record.grouping.empty() ? job.spec().layout.island : job.record.island_scope;
}

bool Grouped(State& s, Job& job, const JobFacts& facts, const std::vector<Worker*>& workers) {
  if (!Open(job, workers)) return true;
  if (job.grouping.request == 0) RequestGrouping(s, job, facts, workers);
  const Duration limit = s.options.grouping_limit;
  if (s.now < job.grouping.requested_at + limit) {
    std::vector<NodeId> names;
    for (const Worker* worker : workers) names.push_back(worker->record.name);
    job.waiting_for =
        absl::StrCat("the links between workers to be measured: they say who shares an island",
                     WhoMeasures(s, names));
    return false;
  }
  Decide(s, job,
         job.spec().layout.island == IslandScope::kSite ? IslandScope::kSite : IslandScope::kAll,
         absl::StrCat("nothing was measured within ", Seconds(limit), " s"));
  return true;
}

Instant GroupingDeadline(const State& s, const Job& job) {
  if (job.grouping.request == 0 || !job.record.grouping.empty()) return kNever;
  const Instant by = job.grouping.requested_at + s.options.grouping_limit;
  return by > s.now ? by : kNever;
}

void OnSitesFound(State& s, const SitesFound& found) {
  if (!found.rates.empty()) s.site_rates = found.rates;
  s.server_sites.clear();
  for (const FoundSite& at : found.workers) {
    Worker* worker = s.FindWorker(at.worker);
    if (worker == nullptr || !worker->site.empty()) continue;
    const std::string site = CleanText(at.site, 80);
    if (site.empty() || worker->record.site == site) continue;
    worker->record.site = site;
    worker->record.site_source = CleanText(at.source, 300);
    s.dirty_members.insert(worker->id());
    s.Log("", Severity::kInfo,
          absl::StrCat("worker ", at.worker, " is at ", site, ", ", worker->record.site_source));
  }
}

void OnWorkersGrouped(State& s, const WorkersGrouped& grouped) {
  Job* job = s.FindJob(grouped.job);
  if (job == nullptr || job->progress.state != JobState::kPreparing || job->grouping.request == 0 ||
      job->grouping.request != grouped.request) {
    return;
  }
  const IslandScope island_scope =
      grouped.island_scope == IslandScope::kAuto ? IslandScope::kAll : grouped.island_scope;
  Decide(s, *job, island_scope, grouped.reason);
}

}  // namespace atl::coord
