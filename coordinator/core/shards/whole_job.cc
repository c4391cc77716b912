#include "coordinator/core/shards/whole_job.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/experts.h"
#include "common/protocol/fragments.h"
#include "common/protocol/limits.h"
#include "common/status.h"
#include "coordinator/core/rounds/staged.h"
#include "coordinator/core/shards/placement.h"
#include "coordinator/core/shards/replicas.h"

namespace atl::coord {

absl::Status Lacks(absl::string_view what) { return absl::FailedPreconditionError(what); }

namespace {

// Half of what can be stored: the job goes on from there.
constexpr int64_t kMostNumber = kMaxNumber / 2;
constexpr Version kMostVersion = kMaxVersion / 2;
constexpr Generation kMostGeneration = kMaxGeneration / 2;

// The name of the first number beyond its limit; "": none is.
absl::string_view FindExcess(const JobDescribed& described) {
  const HeldJob& held = described.held;
  const JobImage& image = described.newest.image;
  const std::tuple<absl::string_view, int64_t, int64_t> numbers[] = {
      {"version", std::max(held.version, described.newest.version), kMostVersion},
      {"generation", std::max(held.generation, image.plan_generation), kMostGeneration},
      {"placement", std::max(held.placement, described.assignment.definition.placement),
       kMostNumber},
      {"round", image.round, kMostNumber},
      {"tokens", image.tokens_committed, kMostNumber},
      {"tokens of its newest round", image.tokens, image.tokens_committed},
      {"validated version", image.validated_version, described.newest.version},
      {"averaged version", image.averaged_version, described.newest.version},
      {"steps of its averaged moments", image.averaged_steps, kMostNumber}};
  for (const auto& [name, value, most] : numbers) {
    if (value > most) return name;
  }
  const bool steps = image.optimizer_steps >= 0 && image.optimizer_steps <= kMostNumber;
  if (!steps) return "steps of its optimizers";
  for (const IslandAccount& account : image.islands) {
    const bool counts = std::max({account.rounds_accepted, account.rounds_rejected,
                                  account.tokens_committed}) <= kMostNumber;
    if (!counts) return "account of an island";
  }
  for (const RoundTerm& term : described.newest.terms) {
    const bool known = std::any_of(
        image.islands.begin(), image.islands.end(),
        [&](const IslandAccount& account) { return account.island == term.contribution.island; });
    if (!known && image.round > 0) return "contribution of an island";
  }
  return "";
}

absl::Status CheckNumbers(const Descriptions& by_server) {
  for (const auto& [server, described] : by_server) {
    const absl::string_view excess = FindExcess(*described);
    if (excess.empty()) continue;
    return Lacks(absl::StrCat("parameter server ", server, " says of it a ", excess,
                              " that no job can have come to: its log is damaged, or it is none"));
  }
  return absl::OkStatus();
}

// The newest: a server that was not there when settings changed has the one before.
absl::StatusOr<const JobDefinition*> FindJobDefinition(const Descriptions& by_server) {
  const JobDefinition* newest = nullptr;
  for (const auto& [server, described] : by_server) {
    const JobDefinition& definition = described->assignment.definition;
    if (definition.facts.layers.empty()) continue;
    absl::Status status = Validate(definition.spec);
    if (status.ok()) status = Validate(definition.facts);
    if (!status.ok()) {
      return Lacks(absl::StrCat("parameter server ", server, " holds it with a bad ",
                                "specification: ", status.message()));
    }
    if (newest == nullptr || definition.placement > newest->placement) newest = &definition;
  }
  if (newest == nullptr) return Lacks("no server's log says what the job is");
  return newest;
}

// Every element of every layer once.
absl::Status CheckCover(const JobFacts& facts, std::vector<ShardDescriptor> shards) {
  std::sort(shards.begin(), shards.end(), [](const ShardDescriptor& a, const ShardDescriptor& b) {
    return std::pair(a.layer, a.begin) < std::pair(b.layer, b.begin);
  });
  auto shard = shards.begin();
  for (int32_t layer = 0; layer < static_cast<int32_t>(facts.layers.size()); ++layer) {
    const int64_t size = facts.layers[layer].elements;
    int64_t covered = 0;
    while (shard != shards.end() && shard->layer == layer && shard->begin == covered &&
           shard->elements > 0 && shard->elements <= size - covered) {
      covered += (shard++)->elements;
    }
    if (covered < size) {
      return Lacks(absl::StrCat("no attached server holds layer ", layer, " (",
                                facts.layers[layer].name, ") from element ", covered,
                                " on: start the server that does"));
    }
  }
  return shard == shards.end() ? absl::OkStatus() : Lacks("its shards overlap");
}

// A shard that a server reports to hold.
struct HeldShard {
  OwnedShard shard;
  NodeId server;
  const JobDescribed* by = nullptr;

  int64_t holder_changes() const { return CountHolderChanges(by->assignment.definition.placement); }
};

// By shard; first those with the newer holders, then those with the newer version.
std::vector<HeldShard> AllHeld(const Descriptions& by_server) {
  std::vector<HeldShard> all_held;
  for (const auto& [server, described] : by_server) {
    for (const OwnedShard& shard : described->assignment.shards) {
      all_held.push_back({shard, server, described});
    }
  }
  const auto rank = [](const HeldShard& held) {
    return std::tuple(held.shard.shard, -held.holder_changes(), -held.by->held.version);
  };
  std::stable_sort(all_held.begin(), all_held.end(),
                   [&](const HeldShard& a, const HeldShard& b) { return rank(a) < rank(b); });
  return all_held;
}

// A server that is one version behind must have all of these shards that the newest one is made of.
absl::Status CheckCatchUp(const NodeId& server, const JobDescribed& described,
                          const std::vector<OwnedShard>& shards, const CommitRound& newest) {
  std::map<ShardId, int64_t> elements;
  for (const OwnedShard& shard : described.assignment.shards)
    elements[shard.shard] = shard.elements;
  std::map<ContributionId, StagedShards> staged;  // of the newest alone, however many are listed
  for (const RoundTerm& term : newest.terms) staged[term.contribution];
  for (const PushId& push : described.held.staged) {
    const auto size = elements.find(push.shard);
    const auto wanted = staged.find(ToContributionId(push));
    if (size != elements.end() && wanted != staged.end()) wanted->second.Add(push, size->second);
  }
  const Fragments fragments = FragmentsFrom(described.assignment.definition.spec.outer);
  for (const OwnedShard& shard : shards) {
    if (!IsInTurn(newest.version, shard, fragments)) continue;
    for (const RoundTerm& term : newest.terms) {
      const ContributionId& c = term.contribution;
      if (!IsSeen(term.expert_tokens, shard) || staged[c].Holds(shard.shard)) continue;
      return Lacks(absl::StrCat("parameter server ", server, " lacks island ", c.island,
                                "'s push of shard ", shard.shard, ", which version ",
                                newest.version, " is made of"));
    }
  }
  return absl::OkStatus();
}

// Into `whole`. Of two servers that claim a shard, the one with the newer holders has it: the shard
// has moved. Where the job keeps two of each shard, servers of the same holders have them.
absl::Status CollectShards(const Descriptions& by_server, WholeJob& whole) {
  const bool copies = whole.definition->spec.outer.shard_copies == 2;
  const HeldShard* first = nullptr;  // on the active server
  const std::vector<HeldShard> all_held = AllHeld(by_server);
  for (const HeldShard& held : all_held) {
    const OwnedShard& shard = held.shard;
    if (first == nullptr || first->shard.shard != shard.shard) {
      first = &held;
      whole.shards.push_back({shard.shard, shard.layer, shard.begin, shard.elements, {}});
      whole.shards.back().expert = shard.expert;
      whole.shards.back().replicas.push_back({.server = held.server, .role = ReplicaRole::kActive});
      continue;
    }
    if (first->holder_changes() > held.holder_changes()) continue;
    std::vector<ShardReplica>& replicas = whole.shards.back().replicas;
    if (!copies || replicas.size() == 2) {
      return Lacks(absl::StrCat("parameter servers ", first->server, " and ", held.server,
                                " both hold shard ", shard.shard,
                                ": stop the one whose copy is older"));
    }
    // A copy that cannot catch up was done without.
    const Version behind = first->by->held.version - held.by->held.version;
    if (behind > 1 ||
        (behind == 1 && !CheckCatchUp(held.server, *held.by, {shard}, first->by->newest).ok())) {
      continue;
    }
    replicas.push_back({.server = held.server, .role = ReplicaRole::kStandby});
  }
  ATOLL_RETURN_IF_ERROR(CheckCover(whole.definition->facts, whole.shards));
  for (size_t i = 0; i < whole.shards.size(); ++i) {
    if (whole.shards[i].shard == static_cast<ShardId>(i)) continue;
    return Lacks("its shards are not numbered 0 on");
  }
  return absl::OkStatus();
}

// Returns what `server` holds of the job, not the copies that are done without.
std::vector<OwnedShard> HeldBy(const NodeId& server, const WholeJob& whole) {
  std::vector<OwnedShard> held;
  ForEachReplica(whole.shards, [&](const ShardDescriptor& shard, const ShardReplica& replica) {
    if (replica.server != server) return;
    held.push_back(ToOwnedShard(shard));
  });
  return held;
}

}  // namespace

Descriptions SelectHolders(const WholeJob& whole, const Descriptions& by_server) {
  Descriptions holders;
  ForEachReplica(whole.shards, [&](const ShardDescriptor&, const ShardReplica& replica) {
    holders[replica.server] = by_server.at(replica.server);
  });
  return holders;
}

absl::StatusOr<WholeJob> AddUp(const Descriptions& described) {
  WholeJob whole;
  ATOLL_RETURN_IF_ERROR(CheckNumbers(described));
  for (const auto& [server, what] : described) {
    whole.placement =
        std::max({whole.placement, what->assignment.definition.placement, what->held.placement});
  }
  auto definition = FindJobDefinition(described);
  if (!definition.ok()) return definition.status();
  whole.definition = *definition;
  if (absl::Status status = CollectShards(described, whole); !status.ok()) return status;
  const Descriptions by_server = SelectHolders(whole, described);
  whole.ended = true;
  for (const auto& [server, described] : by_server) {
    whole.ended = whole.ended && described->held.ended;
    whole.generation = std::max(
        {whole.generation, described->held.generation, described->newest.image.plan_generation});
    if (described->held.version <= whole.version) continue;
    whole.version = described->held.version;
    whole.newest = &described->newest;
  }
  if (whole.newest == nullptr) {
    whole.ended = false;
    return whole;
  }
  if (whole.newest->image.round <= 0 || whole.newest->version != whole.version) {
    return Lacks(absl::StrCat("the servers' logs do not say what the rounds up to version ",
                              whole.version, " were about"));
  }
  for (const auto& [server, described] : by_server) {
    if (described->held.version == whole.version) continue;
    absl::Status status =
        described->held.version == whole.version - 1
            ? CheckCatchUp(server, *described, HeldBy(server, whole), *whole.newest)
            : Lacks(absl::StrCat("parameter server ", server, " is at version ",
                                 described->held.version, ", others at ", whole.version));
    if (!status.ok()) return status;
  }
  return whole;
}

}  // namespace atl::coord
