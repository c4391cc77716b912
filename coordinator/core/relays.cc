#include "coordinator/core/relays.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/net/relay/words.h"
#include "common/plural.h"
#include "coordinator/core/islands/grouping.h"

namespace atl::coord {
namespace {

const Member* FindMember(const State& s, MemberKind kind, const NodeId& name) {
  if (kind == MemberKind::kWorker) return s.FindWorker(name);
  return s.FindServer(name);
}

// Null: it is not there any more.
const Member* FindRelay(const State& s, const RelayUse& use) {
  const Member* relay = FindMember(s, use.kind, use.name);
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

using Loads = std::map<MemberId, int64_t>;  // members that each relay serves

Loads CountLoads(const State& s) {
  Loads loads;
  for (const MemberId& relay : s.relays) loads[relay] = 0;
  s.ForEachMember([&](const Member& member) {
    if (!member.attached) return;
    for (const RelayUse& use : member.relays) {
      if (const auto load = loads.find({use.kind, use.name}); load != loads.end()) ++load->second;
    }
  });
  return loads;
}

// Nothing: all serve it already.
std::optional<RelayUse> ChooseRelay(const State& s, const Member& member, const Loads& loads) {
  const std::string site = FindSite(s, member);
  std::optional<std::tuple<bool, int64_t, MemberId>> best;
  for (const auto& [id, load] : loads) {
    const bool used =
        std::any_of(member.relays.begin(), member.relays.end(), [&id = id](const RelayUse& use) {
          return MemberId{use.kind, use.name} == id;
        });
    const Member* const relay = FindMember(s, id.kind, id.name);
    if (used || relay == nullptr) continue;
    const std::tuple<bool, int64_t, MemberId> rank(site.empty() || FindSite(s, *relay) != site,
                                                   load, id);
    if (!best || rank < *best) best = rank;
  }
  if (!best) return std::nullopt;
  const auto& [elsewhere, load, id] = *best;
  return RelayUse{id.kind, id.name, FindMember(s, id.kind, id.name)->record.incarnation,
                  elsewhere ? absl::StrCat("serves ", CountText(load, "other member"))
                            : absl::StrCat("at its site ", site)};
}

bool UpdateRelays(const State& s, Member& member, Loads& loads) {
  const std::vector<RelayUse> before = member.relays;
  std::erase_if(member.relays, [&](const RelayUse& use) { return FindRelay(s, use) == nullptr; });
  while (member.relays.size() < kRelaysByMember && member.relay_address.empty()) {
    std::optional<RelayUse> use = ChooseRelay(s, member, loads);
    if (!use) break;
    ++loads[{use->kind, use->name}];
    member.relays.push_back(*std::move(use));
  }
  if (!member.relay_address.empty()) member.relays.clear();
  return member.relays != before;
}

}  // namespace

void TakeRelay(State& s, Member& member, const std::string& address, const std::string& secret) {
  member.relay_address = CleanText(address, 256);
  member.relay_secret = CleanText(secret, 64);
  if (member.relay_address.empty()) {
    s.relays.erase(member.id());
  } else {
    s.relays.insert(member.id());
  }
  AssignRelays(s);
}

void AssignRelays(State& s) {
  if (s.relays.empty() && !s.relayed) return;
  Loads loads = CountLoads(s);
  s.relayed = false;
  s.ForEachMember([&](Member& member) {
    if (!member.attached) return;
    const bool changed = UpdateRelays(s, member, loads);
    s.relayed |= !member.relays.empty();
    if (!changed) return;
    const std::string relays = DescribeRelays(member);
    s.Log("", Severity::kInfo,
          absl::StrCat(Name(member.record.kind), " ", member.record.name, " can be reached ",
                       relays.empty() ? "through no relay any more" : "through ", relays));
    if (Worker* worker = AsWorker(member)) {
      s.Send(*worker, MakeWelcome(s, member));
    } else {
      s.SendToServer(member.record.name, MakeWelcome(s, member));
    }
  });
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
