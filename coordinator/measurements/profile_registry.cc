#include "coordinator/measurements/profile_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

// A pair that could not be measured though there is a connection is requested again after so long.
constexpr Duration kUnmeasuredRetry = std::chrono::minutes(2);
// Above this number of links, what is measured meanwhile is gathered before rates between sites are
// computed.
constexpr size_t kManyLinks = 1000;
constexpr Duration kGatheredOfEachLink = std::chrono::microseconds(20);

}  // namespace

void ProfileRegistry::OnMessage(Instant now, const FromWorker& from) {
  if (const auto* hello = std::get_if<WorkerHello>(&from.message)) {
    OnHello(from.worker, from.incarnation, *hello);
  } else if (const auto* prepared = std::get_if<JobPrepared>(&from.message)) {
    for (const DeviceProfile& profile : prepared->profiles) {
      if (WorkerFromDevice(profile.device) != from.worker || profile.layers.empty()) continue;
      const std::pair key(profile.device, profile.model_digest);
      if (profiles_.size() >= kMaxProfiles && profiles_.count(key) == 0) continue;
      profiles_[key] = profile;
    }
  } else if (const auto* measured = std::get_if<LinksMeasured>(&from.message)) {
    OnMeasured(now, from.worker, *measured);
  } else if (const auto* heartbeat = std::get_if<WorkerHeartbeat>(&from.message)) {
    for (const DeviceWork& work : heartbeat->devices) {
      const auto profile = profiles_.find({work.device, work.model_digest});
      if (profile == profiles_.end() || WorkerFromDevice(work.device) != from.worker) continue;
      const double before = device_corrections_.Factor(work.device, work.model_digest);
      device_corrections_.OnWork(now, profile->second, work, changes_);
      if (device_corrections_.Factor(work.device, work.model_digest) == before) continue;
      StoreDevice(now, work.device, work.model_digest);
    }
    for (const LinkFailure& failure : heartbeat->unreachable) {
      if (failure.to == from.worker) continue;
      unreachable_.Failed(now, from.worker, failure, true, changes_);
    }
    for (const RoundTrip& trip : heartbeat->round_trips) {
      if (trip.to != from.worker) OnRoundTrip(now, {from.worker, trip.to}, trip.seconds);
    }
    for (const AllReduceTimes& all_reduce_times : heartbeat->all_reduce_times) {
      if (WorkerFromDevice(all_reduce_times.device) == from.worker)
        OnAllReduceTimes(now, all_reduce_times);
    }
    if (!heartbeat->progress) return;
    for (const StageLinkState& stage_link : heartbeat->progress->stage_links)
      OnStageLink(now, stage_link);
  }
}

// Nothing is known of another process of the same name but its site.
void ProfileRegistry::OnHello(const NodeId& worker, Incarnation incarnation,
                              const WorkerHello& hello) {
  if (standing_.size() >= kMaxProfiles && standing_.count(worker) == 0) return;
  const bool moved = std::exchange(standing_[worker].declared, hello.site) != hello.site;
  all_declared_ = all_declared_ && !hello.site.empty();
  if (moved) {
    UpdateSharedLinks();
    CheckAllTurns();
  }
  IslandMember& known = said_hello_[worker];
  const bool same = incarnation <= known.incarnation;
  // Others may reach it there, or by the new way.
  if (!known.endpoint.empty() && known.endpoint != hello.peer_endpoint) {
    unreachable_.Forget(worker);
    moved_[worker] = last_turn_;
  }
  if (incarnation >= known.incarnation) {
    known = {worker, incarnation, hello.peer_endpoint, hello.peer_public_key};
    known.more_endpoints = hello.more_peer_endpoints;
  }
  if (same) return;
  device_corrections_.Forget(worker);
  UnstoreDevices();
  link_corrections_.Forget(worker);
  all_reduce_corrections_.Forget(worker);
  std::erase_if(round_trips_, [&](const auto& trip) {
    return trip.first.first == worker || trip.first.second == worker;
  });
  unreachable_.Forget(worker);
  std::erase_if(unmeasured_, [&](const auto& entry) {
    return entry.first.first == worker || entry.first.second == worker;
  });
}

void ProfileRegistry::OnMeasured(Instant now, const NodeId& worker, const LinksMeasured& measured) {
  if (measured.probe) {
    for (const NodeId& to : measured.reached) unreachable_.Probed(now, worker, to, "", changes_);
    for (const LinkFailure& failure : measured.unreachable) {
      unreachable_.Probed(now, worker, failure.to,
                          failure.reason.empty() ? "no answer" : failure.reason, changes_);
    }
    return;
  }
  for (const LinkProfile& link : measured.links) {
    if (link.from != worker || link.to == worker || !Usable(link)) continue;
    const Pair pair(link.from, link.to);
    if (links_.size() >= kMaxLinks && links_.count(pair) == 0) continue;
    if (measured.request == 0) {  // some time ago: better than nothing
      const Instant old = now - kLinkFresh - Duration(1);
      if (!links_.try_emplace(pair, LinkReport{link, old, false}).second) continue;
      UpdateSharedLink(pair);
      links_changed_ = true;
      continue;
    }
    links_[pair] = {link, now, false};
    UpdateSharedLink(pair);
    Unstore(LinkRecord{link});
    link_corrections_.Restart(pair.first, pair.second);
    all_reduce_corrections_.Restart(pair.first, pair.second,
                                    MakeUndirectedLinkKey(pair.first, pair.second));
    unmeasured_.erase(pair);
    unreachable_.Passed(pair.first, pair.second);
    links_changed_ = true;
  }
  for (const LinkFailure& failure : measured.unreachable) {
    const auto moved = moved_.find(failure.to);
    const bool elsewhere = moved != moved_.end() && measured.request <= moved->second;
    if (failure.to == worker || elsewhere) continue;
    unreachable_.Failed(now, worker, failure, false, changes_);
  }
  for (Waiting& waiting : waiting_) {
    const auto ended =
        std::find_if(waiting.turns.begin(), waiting.turns.end(), [&](const Turn& turn) {
          return turn.number == measured.request && turn.measurer == worker;
        });
    if (ended == waiting.turns.end()) continue;
    EndTurn(*ended);
    waiting.turns.erase(ended);
    if (!measured.unmeasured.empty() || !measured.trouble.empty()) CheckAllTurns();
    // No other worker is to wait for them.
    for (const LinkFailure& failure : measured.unmeasured) {
      Busy(now, failure.to, waiting, failure.reason);
    }
    if (!measured.trouble.empty()) Busy(now, worker, waiting, measured.trouble);
  }
}

bool ProfileRegistry::IsWanted(const Waiting& waiting, const Pair& pair) {
  return waiting.joined.empty() || waiting.joined.contains(pair.first) ||
         waiting.joined.contains(pair.second);
}

void ProfileRegistry::Busy(Instant now, const NodeId& worker, const Waiting& among,
                           const std::string& reason) {
  for (const PlanMember& member : among.request.members) {
    const NodeId& other = member.member.worker;
    if (other == worker || unmeasured_.size() + 2 > kMaxLinks) continue;
    if (!IsWanted(among, {worker, other})) continue;
    for (const Pair& pair : {Pair(worker, other), Pair(other, worker)}) {
      if (!Fresh(now, pair)) unmeasured_[pair] = {now + kUnmeasuredRetry, reason};
    }
  }
}

std::string ProfileRegistry::FindWorkerSite(const NodeId& worker) const {
  const auto standing = standing_.find(worker);
  return standing == standing_.end() ? "" : standing->second.site();
}

std::map<ProfileRegistry::Pair, LinkProfile> ProfileRegistry::Profiles() const {
  std::map<Pair, LinkProfile> links;
  for (const auto& [pair, report] : links_) links[pair] = report.link;
  return links;
}

void ProfileRegistry::UpdateSites(Instant now, Work& work) {
  if (!links_changed_) return;
  // Then only the rates change, which nothing waits for.
  if (all_declared_ && now < sites_at_) {
    work.deadline = std::min(work.deadline, sites_at_);
    return;
  }
  links_changed_ = false;
  sites_at_ =
      now + (links_.size() > kManyLinks ? kGatheredOfEachLink * static_cast<int64_t>(links_.size())
                                        : Duration());
  const bool all_declared = all_declared_ =
      std::all_of(standing_.begin(), standing_.end(),
                  [](const auto& entry) { return !entry.second.declared.empty(); });
  for (auto& [worker, found] :
       all_declared ? std::map<NodeId, MeasuredSite>() : FindSites(standing_, Profiles())) {
    Standing& standing = standing_[worker];
    if (!standing.declared.empty() || standing.before == found.site) continue;
    standing.before = found.site;
    work.sites[worker] = std::move(found);
  }
  if (!work.sites.empty()) UpdateSharedLinks();
  auto rates = RatesBetweenSites(standing_, Profiles());
  if (rates != site_rates_) work.site_rates = site_rates_ = std::move(rates);
}

std::vector<std::string> ProfileRegistry::ListTroubles(Instant now) const {
  std::vector<std::string> texts = device_corrections_.Texts();
  for (std::string& text : unreachable_.Texts(now)) texts.push_back(std::move(text));
  for (const auto& [pair, report] : links_) {
    if (report.measured.relay.empty()) continue;
    texts.push_back(report.measured.relay == "*"
                        ? absl::StrCat(pair.first, " > ", pair.second, ": ", pair.second,
                                       " connects, as ", pair.first, " cannot reach it")
                        : absl::StrCat(pair.first, " > ", pair.second, ": through the relay ",
                                       report.measured.relay, ", not directly"));
  }
  for (const auto& [pair, entry] : unmeasured_) {
    texts.push_back(absl::StrCat(pair.first, " > ", pair.second, ": not measured: ", entry.reason));
  }
  return texts;
}

bool ProfileRegistry::Fresh(Instant now, const Pair& pair) const {
  // A retry of a measurement that has just failed would only delay the plan.
  if (unreachable_.Blocked(pair.first, pair.second)) return true;
  const auto failed = unmeasured_.find(pair);
  if (failed != unmeasured_.end() && now < failed->second.again_at) return true;
  const auto known = links_.find(pair);
  return known != links_.end() && now - known->second.at <= kLinkFresh;
}

// Between workers of two sites the inter-site link, at one site that of each worker; else, the
// pair's own.
std::string ProfileRegistry::MakeSharedLinkKey(const Pair& pair) const {
  const std::string from = FindWorkerSite(pair.first), to = FindWorkerSite(pair.second);
  if (from.empty() || to.empty()) return absl::StrCat("pair ", pair.first, " > ", pair.second);
  if (from == to) return absl::StrCat("worker ", pair.first);
  return absl::StrCat("sites ", from, " > ", to);
}

// Pairs whose ends are both known; the others wait for them to come back.
void ProfileRegistry::Probe(Instant now, Work& work) {
  std::map<NodeId, std::vector<NodeId>> probes;
  work.deadline = std::min(work.deadline, unreachable_.Advance(now, probes));
  for (auto& [from, others] : probes) {
    const auto prober = said_hello_.find(from);
    if (prober == said_hello_.end()) continue;
    MeasureLinks probe;
    probe.request = ++last_probe_;
    probe.measurer = from;
    probe.probe = true;
    for (const NodeId& to : others) {
      const auto known = said_hello_.find(to);
      if (known == said_hello_.end() || known->second.endpoint.empty()) continue;
      probe.members.push_back(known->second);
      probe.to.push_back(to);
    }
    if (probe.to.empty()) continue;
    work.send.push_back({from, prober->second.incarnation, std::move(probe)});
  }
}

ProfileRegistry::Work ProfileRegistry::Advance(Instant now) {
  Work work;
  const size_t changes = changes_.size();
  work.deadline = device_corrections_.Advance(now, changes_);
  if (changes_.size() > changes) UnstoreDevices();
  work.persist = std::exchange(persist_, {});
  Probe(now, work);
  work.changes = std::exchange(changes_, {});
  if (turns_at_ <= now) EndLateTurns(now);
  const bool turns_changed = std::exchange(turns_changed_, false);
  if (turns_changed) {
    for (Waiting& waiting : std::exchange(waiting_, {})) {
      if (!std::exchange(waiting.changed, false) || BeginTurns(now, waiting, work) ||
          !waiting.turns.empty()) {
        waiting_.push_back(std::move(waiting));
        continue;
      }
      UpdateSites(now, work);
      FillIn(waiting.request);
      work.plan.emplace_back(waiting.key, std::move(waiting.request));
    }
  }
  if (turns_changed || turns_at_ <= now) {
    turns_at_ = kNever;
    for (Waiting& waiting : waiting_) SendTurns(now, waiting, work);
  }
  work.deadline = std::min(work.deadline, turns_at_);
  // Half of the links would say something about the others that is not so.
  if (std::none_of(waiting_.begin(), waiting_.end(),
                   [](const Waiting& waiting) { return !waiting.turns.empty(); })) {
    UpdateSites(now, work);
  }
  return work;
}

std::vector<DeviceProfile> ProfileRegistry::Devices(uint64_t model_digest) const {
  std::vector<DeviceProfile> devices;
  for (const auto& [key, profile] : profiles_) {
    if (key.second == model_digest) devices.push_back(device_corrections_.Corrected(profile));
  }
  return devices;
}

std::vector<LinkReport> ProfileRegistry::Links() const {
  std::vector<LinkReport> links;
  for (const auto& [pair, report] : links_) links.push_back(report);
  return links;
}

void ProfileRegistry::UpdateSharedLink(const Pair& pair) {
  const auto [shared_link, is_new] = shared_links_.try_emplace(MakeSharedLinkKey(pair), pair);
  if (!is_new && links_.at(pair).at >= links_.at(shared_link->second).at)
    shared_link->second = pair;
}

void ProfileRegistry::UpdateSharedLinks() {
  shared_links_.clear();
  for (const auto& [pair, report] : links_) UpdateSharedLink(pair);
}

std::optional<LinkReport> ProfileRegistry::FindLinkReport(const Pair& pair) const {
  if (const auto link = links_.find(pair); link != links_.end()) return link->second;
  if (pair.first == pair.second || unreachable_.Blocked(pair.first, pair.second) ||
      unmeasured_.contains(pair)) {
    return std::nullopt;
  }
  const auto shared_link = shared_links_.find(MakeSharedLinkKey(pair));
  if (shared_link == shared_links_.end()) return std::nullopt;
  LinkReport report = links_.at(shared_link->second);
  LinkProfile& link = report.link;
  if (FindWorkerSite(pair.first) == FindWorkerSite(pair.second)) {
    // Both cards are on the way.
    const auto back = shared_links_.find(MakeSharedLinkKey({pair.second, pair.first}));
    if (back == shared_links_.end()) return std::nullopt;
    const LinkProfile& other = links_.at(back->second).link;
    SetLaw(std::max(link.latency_ns, other.latency_ns),
           std::min(link.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s), link);
  }
  link.from = pair.first;
  link.to = pair.second;
  return LinkReport(link, report.at, report.live);
}

LinkReport* ProfileRegistry::FindLink(const Pair& pair) {
  auto known = links_.find(pair);
  if (known == links_.end()) {
    const auto report = FindLinkReport(pair);
    if (!report || links_.size() >= kMaxLinks) return nullptr;
    known = links_.emplace(pair, *report).first;
  }
  return &known->second;
}

void ProfileRegistry::FillIn(PlanRequest& request) const {
  const uint64_t digest = ComputeModelDigest(request.facts.model, request.spec);
  const auto unreachable = unreachable_.Reasons();
  request.links.clear();
  request.unreachable.clear();
  for (PlanMember& member : request.members) {
    member.profiles.clear();
    for (size_t i = 0; i < member.devices.size(); ++i) {
      const auto known = profiles_.find({absl::StrCat(member.member.worker, "/", i), digest});
      if (known == profiles_.end()) continue;
      member.profiles.push_back(device_corrections_.Corrected(known->second));
    }
    const auto standing = standing_.find(member.member.worker);
    if (member.site.empty() && standing != standing_.end()) member.site = standing->second.before;
    for (const PlanMember& other : request.members) {
      if (const auto link = FindLinkReport({member.member.worker, other.member.worker})) {
        request.links.push_back(link->link);
      }
      const auto blocked = unreachable.find({member.member.worker, other.member.worker});
      if (blocked == unreachable.end()) continue;
      request.unreachable.push_back({blocked->first.first, blocked->first.second, blocked->second});
    }
  }
}

}  // namespace atl
