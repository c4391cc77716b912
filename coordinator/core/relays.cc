#include "coordinator/core/relays.h"

#include <map>
#include <optional>
#include <set>
#include <tuple>

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

std::string FindSite(const State& s, const Member& member) {
  if (member.record.kind == MemberKind::kWorker) {
    return GetWorkerSite(static_cast<const Worker&>(member));
  }
  return GetServerSite(s, static_cast<const Server&>(member));
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
  return RelayUse{
      relay->record.kind, relay->record.name, relay->record.incarnation,
      elsewhere ? absl::StrCat("serves ", CountText(static_cast<int64_t>(load), "other member"))
                : absl::StrCat("at its site ", site)};
}

// Returns whether its relays have changed.
bool UpdateUses(State& s, Member& member) {
  const std::vector<RelayUse> before = member.relays;
  const bool relays = s.relays.contains(member.id());
  std::erase_if(member.relays,
                [&](const RelayUse& use) { return relays || FindRelay(s, use) == nullptr; });
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

void UpdateRelays(State& s, Member& member) {
  if (!UpdateUses(s, member)) return;
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

void UpdateAll(State& s, const std::set<MemberId>& members) {
  for (const MemberId& id : members) {
    if (Member* member = s.FindMember(id)) UpdateRelays(s, *member);
  }
}

}  // namespace

void TakeRelay(State& s, Member& member, const std::string& address, const std::string& secret) {
  member.relay_address = CleanText(address, 256);
  member.relay_secret = CleanText(secret, 64);
  const auto found = s.relays.find(member.id());
  std::set<MemberId> affected;
  if (found != s.relays.end()) affected = found->second;
  if (member.relay_address.empty()) {
    s.relays.erase(member.id());
  } else {
    s.relays.try_emplace(member.id());
    affected.insert(s.lack_relays.begin(), s.lack_relays.end());
  }
  affected.erase(member.id());
  UpdateRelays(s, member);
  UpdateAll(s, affected);
}

void RemoveFromRelays(State& s, const Member& member) {
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
  return welcome;
}

std::string DescribeRelays(const Member& member) {
  std::string text;
  for (const RelayUse& use : member.relays) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", use.name, " (", use.reason, ")");
  }
  return text;
}

}  // namespace atl::coord
