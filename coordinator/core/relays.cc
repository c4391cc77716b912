#include "coordinator/core/relays.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/relay/words.h"
#include "common/plural.h"
#include "coordinator/core/islands/grouping.h"

namespace atl::coord {
namespace {

// Null: it is not there any more.
const Member* FindRelay(const State& s, const RelayUse& use) {
  const Member* relay = s.FindMember({use.kind, use.name});
  const bool there = relay != nullptr && relay->attached && !relay->relay_address.empty() &&
                     relay->record.incarnation == use.incarnation;
  return there ? relay : nullptr;
}

bool IsThere(const State& s, const RelayUse& use) {
  return FindRelay(s, use) != nullptr && s.relays.contains({use.kind, use.name});
}

std::string FindSite(const State& s, const Member& member) {
  if (member.record.kind == MemberKind::kWorker) {
    return GetWorkerSite(static_cast<const Worker&>(member));
  }
  return GetServerSite(s, static_cast<const Server&>(member));
}

RelayUse MakeUse(const Member& relay, std::string reason) {
  return {relay.record.kind, relay.record.name, relay.record.incarnation, std::move(reason)};
}

// Nothing: all serve it already.
std::optional<RelayUse> ChooseRelay(const State& s, const Member& member) {
  const std::string site = FindSite(s, member);
  std::optional<std::tuple<bool, size_t, const Member*>> best;
  for (const auto& [id, served] : s.relays) {
    const Member* const relay = s.FindMember(id);
    if (served.contains(member.id()) || relay == nullptr) continue;
    const bool elsewhere = site.empty() || FindSite(s, *relay) != site;
    // The first of equal ones.
    if (best && std::tie(std::get<0>(*best), std::get<1>(*best)) <=
                    std::make_tuple(elsewhere, served.size())) {
      continue;
    }
    best.emplace(elsewhere, served.size(), relay);
  }
  if (!best) return std::nullopt;
  const auto& [elsewhere, load, relay] = *best;
  return MakeUse(*relay, elsewhere ? absl::StrCat("serves ", CountText(static_cast<int64_t>(load),
                                                                       "other member"))
                                   : absl::StrCat("at its site ", site));
}

// Returns whether its relays have changed.
bool UpdateUses(State& s, Member& member) {
  const std::vector<RelayUse> before = member.relays;
  const bool relays = s.relays.contains(member.id());
  std::erase_if(member.relays, [&](const RelayUse& use) { return relays || !IsThere(s, use); });
  for (const RelayUse& use : before) {
    if (const auto relay = s.relays.find({use.kind, use.name}); relay != s.relays.end()) {
      relay->second.erase(member.id());
    }
  }
  for (const RelayUse& use : member.relays) s.relays[{use.kind, use.name}].insert(member.id());
  while (member.relays.size() < kRelaysByMember && !relays) {
    std::optional<RelayUse> use = ChooseRelay(s, member);
    if (!use) break;
    s.relays[{use->kind, use->name}].insert(member.id());
    member.relays.push_back(*std::move(use));
  }
  if (member.relays.size() < kRelaysByMember && !relays) {
    s.lack_relays.insert(member.id());
  } else {
    s.lack_relays.erase(member.id());
  }
  return member.relays != before;
}

void Announce(State& s, Member& member) {
  const std::string relays = DescribeRelays(member);
  s.Log("", Severity::kInfo,
        absl::StrCat(Name(member.record.kind), " ", member.record.name, " can be reached ",
                     relays.empty() ? "through no relay any more" : "through ", relays));
  if (Worker* worker = AsWorker(member)) {
    s.Send(*worker, MakeWelcome(s, member));
  } else {
    s.SendToServer(member.record.name, MakeWelcome(s, member));
  }
}

void UpdateRelays(State& s, Member& member) {
  if (UpdateUses(s, member)) Announce(s, member);
}

bool Has(const std::vector<RelayUse>& uses, const Member& relay) {
  return std::any_of(uses.begin(), uses.end(), [&](const RelayUse& use) {
    return use.kind == relay.record.kind && use.name == relay.record.name &&
           use.incarnation == relay.record.incarnation;
  });
}

bool StopDialling(Member& member, Member& relay) {
  relay.dialled_by.erase(member.id());
  return std::erase_if(member.dials, [&](const RelayUse& use) {
           return use.kind == relay.record.kind && use.name == relay.record.name;
         }) > 0;
}

// The member reports that it does not reach `other`.
void LetConnect(State& s, Member& member, Member& other) {
  if (StopDialling(member, other)) Announce(s, member);  // to no effect
  const bool can = !member.relay_address.empty() && !other.unreached.contains(member.address) &&
                   !Has(other.relays, member) && !Has(other.dials, member);
  if (!can || other.dials.size() >= kDialsMost) return;
  StopDialling(other, member);  // an earlier process
  other.dials.push_back(MakeUse(member, absl::StrCat("which cannot reach ", other.address)));
  member.dialled_by.insert(other.id());
  Announce(s, other);
}

void RemoveFromDials(State& s, Member& member) {
  for (const MemberId& id : std::set(member.dialled_by)) {
    Member* const other = s.FindMember(id);
    if (other != nullptr && StopDialling(*other, member)) Announce(s, *other);
  }
  for (const RelayUse& use : std::exchange(member.dials, {})) {
    if (Member* const relay = s.FindMember({use.kind, use.name})) {
      relay->dialled_by.erase(member.id());
    }
  }
  member.dialled_by.clear();
  member.unreached.clear();
}

void SetAddress(State& s, Member& member, const std::string& address) {
  if (const auto before = s.by_address.find(member.address); before != s.by_address.end()) {
    before->second.erase(member.id());
    if (before->second.empty()) s.by_address.erase(before);
  }
  member.address = address;
  if (!address.empty()) s.by_address[address].insert(member.id());
}

void UpdateAll(State& s, const std::set<MemberId>& members) {
  for (const MemberId& id : members) {
    if (Member* member = s.FindMember(id)) UpdateRelays(s, *member);
  }
}

}  // namespace

void TakeRelay(State& s, Member& member, const std::string& endpoint, const std::string& address,
               const std::string& secret, bool own) {
  SetAddress(s, member, ReadLinkWays(endpoint)[0].endpoint);
  member.relay_address = CleanText(address, 256);
  member.relay_secret = CleanText(secret, 64);
  member.relay_own = own;
  const auto found = s.relays.find(member.id());
  std::set<MemberId> affected;
  if (found != s.relays.end()) affected = found->second;
  if (member.relay_address.empty() || member.relay_own) {
    s.relays.erase(member.id());
  } else {
    s.relays.try_emplace(member.id());
    affected.insert(s.lack_relays.begin(), s.lack_relays.end());
  }
  affected.erase(member.id());
  UpdateRelays(s, member);
  UpdateAll(s, affected);
}

void NoteUnreached(State& s, Member& member, const std::vector<std::string>& addresses) {
  member.unreached = {addresses.begin(), addresses.end()};
  member.unreached.erase(member.address);
  for (const std::string& address : member.unreached) {
    const auto found = s.by_address.find(address);
    if (found == s.by_address.end()) continue;
    for (const MemberId& id : found->second) {
      if (Member* const other = s.FindMember(id)) LetConnect(s, member, *other);
    }
  }
}

void RemoveFromRelays(State& s, Member& member) {
  RemoveFromDials(s, member);
  SetAddress(s, member, "");
  s.lack_relays.erase(member.id());
  for (const RelayUse& use : member.relays) {
    if (const auto relay = s.relays.find({use.kind, use.name}); relay != s.relays.end()) {
      relay->second.erase(member.id());
    }
  }
  if (const auto served = s.relays.extract(member.id())) UpdateAll(s, served.mapped());
}

Welcome MakeWelcome(const State& s, const Member& member) {
  Welcome welcome{member.heartbeat_interval, member.lease};
  const std::string name =
      absl::StrCat(member.record.kind == MemberKind::kWorker ? "w." : "s.", member.record.name);
  for (const RelayUse& use : member.relays) {
    const Member* relay = FindRelay(s, use);
    if (relay == nullptr) continue;
    const auto word = [&](bool accepts) {
      return MakeRelayWord(relay->relay_secret, {accepts, name, member.record.incarnation});
    };
    welcome.relays.push_back({use.name, relay->relay_address, word(true), word(false)});
  }
  for (const RelayUse& use : member.dials) {
    const Member* relay = FindRelay(s, use);
    if (relay == nullptr) continue;
    const Incarnation incarnation = member.record.incarnation;
    welcome.relays.push_back({use.name, relay->relay_address,
                              MakeRelayWord(relay->relay_secret, {true, name, incarnation}),
                              MakeRelayText({false, name, incarnation}), true});
  }
  return welcome;
}

std::string DescribeRelays(const Member& member) {
  std::string text;
  for (const RelayUse& use : member.relays) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", use.name, " (", use.reason, ")");
  }
  for (const RelayUse& use : member.dials) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", "itself to ", use.name, " (", use.reason, ")");
  }
  return text;
}

}  // namespace atl::coord
