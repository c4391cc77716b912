// Which links are measured before a plan, by whom, and which at the same time.
//
// Where sites are known an inter-site link is measured by one pair of workers, and at a site each
// worker times its link to another one. Turns that share neither a worker nor a site's inter-site
// link run at the same time: at one site half of the workers measure at once.
//
// Sites that are not known follow from links. Of a few workers every pair is measured, one worker
// after the other, since they may share a link that is not known yet. Of more of them, one, the
// hub, times its links to all others. Those that are near it are at its site, and what is between
// them need not be measured to know that. The others are measured from the next hub, which is the
// first of them, and so on: as many links as there are workers and sites, not pairs. With sites
// found so, links are measured as above.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/measurements/profile_registry.h"

namespace atl {
namespace {

constexpr size_t kAllPairsMax = 8;    // workers without a site of which every pair is measured
constexpr size_t kLinksPerTurn = 16;  // a turn has its limit in time
constexpr Duration kTurnLimit = std::chrono::seconds(20);  // one worker's measuring
constexpr int kTriesPerSharedLink = 3;  // by different workers, before a plan is made without it
// Limits as in sites.h: a message of 1 MB that takes so long is always near, a latency of more
// never.
constexpr double kPayloadBytes = 1e6;
constexpr double kNearSeconds = 4e-3;
constexpr double kNearLatency = 5e-3;
// Slower networks: near is what is about as near as what is nearest.
constexpr double kAboutAsNear = 2;

// All can be reached by the others.
bool HaveEndpoints(const PlanRequest& request) {
  return std::all_of(request.members.begin(), request.members.end(),
                     [](const PlanMember& m) { return !m.member.endpoint.empty(); });
}

double GetLatencySeconds(const LinkProfile& link) {
  return 1e-9 * static_cast<double>(link.latency_ns);
}

double EstimateTransferSeconds(const LinkProfile& link) {
  return plan::LinkFromProfile(link).Seconds(kPayloadBytes);
}

}  // namespace

void ProfileRegistry::Want(PlanKey key, PlanRequest request, bool busy,
                           const std::set<NodeId>& joined) {
  const auto replaced = std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (waiting.key.job != key.job || waiting.key.island != key.island) return false;
    for (const Turn& turn : waiting.turns) Release(turn);
    return true;
  });
  if (replaced > 0) CheckAllTurns();
  Waiting waiting;
  waiting.key = std::move(key);
  waiting.request = std::move(request);
  for (const PlanMember& m : waiting.request.members) waiting.workers.insert(m.member.worker);
  if (busy) waiting.joined = joined;
  waiting.measures = !(busy && joined.empty()) && waiting.request.members.size() > 1 &&
                     HaveEndpoints(waiting.request);
  waiting_.push_back(std::move(waiting));
  turns_changed_ = true;
}

std::vector<std::string> ProfileRegistry::DescribeTurns() const {
  std::vector<std::string> texts;
  for (const Waiting& waiting : waiting_) {
    const std::string what = waiting.key.island == kGrouping
                                 ? std::string("the islands")
                                 : absl::StrCat("the plan of island ", waiting.key.island);
    std::string turns = "others measure first";
    if (!waiting.turns.empty()) {
      turns = absl::StrCat("it is the turn of ", waiting.turns[0].measurer);
      if (waiting.turns.size() > 1) {
        absl::StrAppend(&turns, " and ", waiting.turns.size() - 1, " others");
      }
    }
    texts.push_back(absl::StrCat(what, " of ", waiting.key.job,
                                 " is waiting for links to be measured: ", turns, "; ",
                                 waiting.had_turn.size(), " of ", waiting.request.members.size(),
                                 " workers have begun theirs"));
  }
  return texts;
}

bool ProfileRegistry::IsSharedLinkFresh(Instant now, const std::string& shared_link) const {
  const auto known = shared_links_.find(shared_link);
  return known != shared_links_.end() && now - links_.at(known->second).at <= kLinkFresh;
}

ProfileRegistry::MembersBySite ProfileRegistry::GroupMembersBySite(
    const PlanRequest& request) const {
  MembersBySite members_by_site;
  for (size_t i = 0; i < request.members.size(); ++i) {
    const std::string site = FindWorkerSite(request.members[i].member.worker);
    if (site.empty()) {
      members_by_site.unknown.push_back(i);
    } else {
      members_by_site.sites[site].push_back(i);
    }
  }
  return members_by_site;
}

void ProfileRegistry::Release(const Turn& turn) {
  for (const IslandMember& member : turn.members) in_use_.workers.erase(member.worker);
  for (const std::string& site : turn.sites) in_use_.sites.erase(site);
}

// Ends a turn. Waiting work is checked again only where it shares a worker with the turn, or may
// share a site's link: thousands of turns of a hundred islands end one after the other.
void ProfileRegistry::EndTurn(const Turn& turn) {
  Release(turn);
  turns_changed_ = true;
  for (Waiting& waiting : waiting_) {
    waiting.changed =
        waiting.changed || !turn.sites.empty() ||
        std::any_of(turn.members.begin(), turn.members.end(),
                    [&](const IslandMember& m) { return waiting.workers.contains(m.worker); });
  }
}

void ProfileRegistry::CheckAllTurns() {
  turns_changed_ = true;
  for (Waiting& waiting : waiting_) waiting.changed = true;
}

void ProfileRegistry::EndLateTurns(Instant now) {
  for (Waiting& waiting : waiting_) {
    for (const Turn& turn : waiting.turns) {
      if (now < turn.ends) continue;
      EndTurn(turn);
      Busy(now, turn.measurer, waiting,
           absl::StrCat(turn.measurer, " did not measure within ", Seconds(kTurnLimit), " s"));
    }
    std::erase_if(waiting.turns, [&](const Turn& turn) { return now >= turn.ends; });
  }
}

// True: something is to be measured that cannot be now, because of turns that go on.
bool ProfileRegistry::BeginTurns(Instant now, Waiting& waiting, Work& work) {
  if (!waiting.measures) return false;
  MembersBySite members_by_site = GroupMembersBySite(waiting.request);
  if (members_by_site.unknown.size() > kAllPairsMax && waiting.joined.empty()) {
    if (BeginHubTurn(now, waiting, members_by_site)) return true;
    UpdateSites(now, work);
    members_by_site = GroupMembersBySite(waiting.request);
    members_by_site.unknown.clear();  // of those that no hub reaches nothing is measured
  }
  return BeginSharedLinkTurns(now, waiting, members_by_site);
}

// Selects those of `others` that are near the hub by what is known, in their order.
std::vector<size_t> ProfileRegistry::NearHub(const PlanRequest& request, size_t hub,
                                             const std::vector<size_t>& others) const {
  const NodeId& from = request.members[hub].member.worker;
  std::vector<std::pair<size_t, LinkProfile>> links;
  for (const size_t i : others) {
    const NodeId& to = request.members[i].member.worker;
    auto known = links_.find({from, to});
    if (known == links_.end()) known = links_.find({to, from});
    if (known != links_.end()) links.emplace_back(i, known->second.link);
  }
  if (links.empty()) return {};
  double nearest = EstimateTransferSeconds(links[0].second);
  for (const auto& [i, link] : links) nearest = std::min(nearest, EstimateTransferSeconds(link));
  const double limit = std::max(kNearSeconds, kAboutAsNear * nearest);
  std::vector<size_t> near;
  for (const auto& [i, link] : links) {
    if (GetLatencySeconds(link) <= kNearLatency && EstimateTransferSeconds(link) <= limit)
      near.push_back(i);
  }
  return near;
}

// A turn of the first hub that has links to measure. Hubs are one worker of each known site, then
// workers without a site. True while there is such a hub, or a turn goes on.
bool ProfileRegistry::BeginHubTurn(Instant now, Waiting& waiting,
                                   const MembersBySite& members_by_site) {
  if (!waiting.turns.empty()) return true;
  const std::vector<PlanMember>& members = waiting.request.members;
  std::vector<size_t> hubs, left = members_by_site.unknown;
  for (const auto& [site, at] : members_by_site.sites) hubs.push_back(at[0]);
  for (size_t next = 0; !left.empty(); ++next) {
    if (next >= hubs.size()) {
      hubs.push_back(left[0]);
      left.erase(left.begin());
    }
    const NodeId& from = members[hubs[next]].member.worker;
    std::vector<Wanted> wanted;
    for (const size_t i : left) {
      const Pair pair(from, members[i].member.worker);
      const std::string shared_link = MakeSharedLinkKey(pair);
      const bool known = Fresh(now, pair) || Fresh(now, {pair.second, pair.first});
      if (known || waiting.requested.contains({from, shared_link})) continue;
      if (wanted.size() < kLinksPerTurn) wanted.push_back({i, shared_link, {}});
    }
    if (!wanted.empty()) {
      std::erase_if(wanted, [&](const Wanted& link) {
        return in_use_.workers.contains(members[link.to].member.worker);
      });
      if (!wanted.empty() && !in_use_.workers.contains(from)) {
        BeginTurn(now, waiting, hubs[next], wanted);
      }
      return true;
    }
    const std::vector<size_t> near = NearHub(waiting.request, hubs[next], left);
    std::erase_if(left, [&](size_t i) { return std::binary_search(near.begin(), near.end(), i); });
  }
  return false;
}

// The first of `others` after the measurer that is to be timed on this link and is free.
std::optional<ProfileRegistry::Wanted> ProfileRegistry::ChooseOnSharedLink(
    Instant now, const Waiting& waiting, size_t measurer, const std::vector<size_t>& others,
    const Wanted& wanted_link, bool& blocked) const {
  const std::vector<PlanMember>& members = waiting.request.members;
  const NodeId& from = members[measurer].member.worker;
  const auto tries = waiting.tries.find(wanted_link.shared_link);
  if (IsSharedLinkFresh(now, wanted_link.shared_link) ||
      waiting.requested.contains({from, wanted_link.shared_link}) ||
      (tries != waiting.tries.end() && tries->second >= kTriesPerSharedLink) ||
      std::any_of(waiting.turns.begin(), waiting.turns.end(), [&](const Turn& turn) {
        return turn.shared_links.contains(wanted_link.shared_link);
      })) {
    return std::nullopt;
  }
  const bool site_taken =
      std::any_of(wanted_link.sites.begin(), wanted_link.sites.end(),
                  [&](const std::string& site) { return in_use_.sites.contains(site); });
  const auto after = static_cast<size_t>(std::upper_bound(others.begin(), others.end(), measurer) -
                                         others.begin());
  for (size_t n = 0; n < others.size(); ++n) {
    const size_t i = others[(after + n) % others.size()];
    if (i == measurer) continue;
    const bool is_free = !site_taken && !in_use_.workers.contains(members[i].member.worker);
    if (blocked && !is_free) continue;
    const Pair pair(from, members[i].member.worker);
    if (!IsWanted(waiting, pair) || Fresh(now, pair)) continue;
    if (is_free) return Wanted{i, wanted_link.shared_link, wanted_link.sites};
    blocked = true;
  }
  return std::nullopt;
}

// Lists what the worker is to time now, the next in the order of the request first. `blocked` is
// set where turns that go on keep it from something.
std::vector<ProfileRegistry::Wanted> ProfileRegistry::ListWantedMeasurements(
    Instant now, const Waiting& waiting, const MembersBySite& members_by_site, size_t measurer,
    bool& blocked) const {
  const std::vector<PlanMember>& members = waiting.request.members;
  const NodeId& from = members[measurer].member.worker;
  const std::string own = FindWorkerSite(from);
  std::vector<Wanted> wanted;
  const auto choose = [&](const std::vector<size_t>& others, std::set<std::string> sites) {
    const Wanted wanted_link{0, MakeSharedLinkKey({from, members[others[0]].member.worker}),
                             std::move(sites)};
    if (const auto link =
            ChooseOnSharedLink(now, waiting, measurer, others, wanted_link, blocked)) {
      wanted.push_back(*link);
    }
  };
  for (const auto& [site, others] : members_by_site.sites) {
    if (own.empty()) {
      for (const size_t i : others) choose({i}, {});
    } else if (site == own) {
      choose(others, {});
    } else {
      choose(others, {own, site});
    }
  }
  for (const size_t i : members_by_site.unknown) choose({i}, {});
  const auto distance = [&](const Wanted& link) {
    return (link.to + members.size() - measurer) % members.size();
  };
  std::sort(wanted.begin(), wanted.end(),
            [&](const Wanted& a, const Wanted& b) { return distance(a) < distance(b); });
  if (wanted.size() > kLinksPerTurn) {
    wanted.resize(kLinksPerTurn);
    blocked = true;
  }
  return wanted;
}

bool ProfileRegistry::BeginSharedLinkTurns(Instant now, Waiting& waiting,
                                           const MembersBySite& members_by_site) {
  const bool one_by_one = !waiting.joined.empty() || !members_by_site.unknown.empty();
  if (one_by_one && !waiting.turns.empty()) return true;
  bool blocked = false;
  for (size_t i = 0; i < waiting.request.members.size(); ++i) {
    const NodeId& from = waiting.request.members[i].member.worker;
    if (FindWorkerSite(from).empty() && members_by_site.unknown.empty())
      continue;  // no hub reaches it
    if (blocked && in_use_.workers.contains(from)) continue;
    const std::vector<Wanted> wanted =
        ListWantedMeasurements(now, waiting, members_by_site, i, blocked);
    if (wanted.empty()) continue;
    if (in_use_.workers.contains(from)) {
      blocked = true;
      continue;
    }
    BeginTurn(now, waiting, i, wanted);
    if (one_by_one) return true;
  }
  return blocked;
}

void ProfileRegistry::BeginTurn(Instant now, Waiting& waiting, size_t measurer,
                                const std::vector<Wanted>& wanted) {
  const std::vector<PlanMember>& members = waiting.request.members;
  Turn turn;
  turn.measurer = members[measurer].member.worker;
  std::set<size_t> part = {measurer};
  for (const Wanted& link : wanted) {
    turn.to.push_back(members[link.to].member.worker);
    part.insert(link.to);
    turn.shared_links.insert(link.shared_link);
    turn.sites.insert(link.sites.begin(), link.sites.end());
    waiting.requested.emplace(turn.measurer, link.shared_link);
    ++waiting.tries[link.shared_link];
  }
  for (const size_t i : part) {
    turn.members.push_back(members[i].member);
    in_use_.workers.insert(members[i].member.worker);
  }
  in_use_.sites.insert(turn.sites.begin(), turn.sites.end());
  waiting.had_turn.insert(turn.measurer);
  // Grows over restarts of the coordinator, too.
  last_turn_ = std::max<int64_t>(last_turn_ + 1, now.time_since_epoch().count());
  turn.number = last_turn_;
  turn.ends = now + kTurnLimit;
  turn.send_again = turns_at_ = now;
  waiting.turns.push_back(std::move(turn));
}

// Again until they are answered.
void ProfileRegistry::SendTurns(Instant now, Waiting& waiting, Work& work) {
  for (Turn& turn : waiting.turns) {
    if (now >= turn.send_again) {
      for (const IslandMember& member : turn.members) {
        MeasureLinks message{waiting.key.job, turn.number, turn.members, turn.measurer, turn.to};
        message.during_steps = !waiting.joined.empty();
        work.send.push_back({member.worker, member.incarnation, std::move(message)});
      }
      turn.send_again = now + kRetryInterval;
    }
    turns_at_ = std::min({turns_at_, turn.ends, turn.send_again});
  }
}

}  // namespace atl
