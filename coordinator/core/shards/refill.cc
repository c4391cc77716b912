#include "coordinator/core/shards/refill.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/protocol/fragments.h"
#include "coordinator/core/shards/copies.h"

namespace atl::coord {
namespace {

constexpr int kRoundsNamedMost = 8;
constexpr int kIslandsNamedMost = 8;  // of a round

bool IsFilled(const JobRecord& record, SlotId slot) {
  return std::any_of(record.moves.begin(), record.moves.end(),
                     [&](const ShardMove& move) { return move.fill && move.shard == slot; });
}

// A round after version `base`, up to `version`, concerns one of them.
bool Concerns(const Job& job, Version base, Version version,
              const std::vector<ShardPlacement>& shards) {
  return std::any_of(shards.begin(), shards.end(), [&](const ShardPlacement& shard) {
    return HasTurnSince(base, version, shard.layer, job.spec().outer.fragments);
  });
}

// "round 8: island 0 of w-0, island 1 of w-1".
std::string NameContributions(const DecisionRecord& decision) {
  std::string text = absl::StrCat("round ", decision.round);
  int named = 0;
  for (const DecisionParticipant& p : decision.participants) {
    if (!p.accepted) continue;
    if (named == kIslandsNamedMost) return absl::StrCat(text, " and more");
    absl::StrAppend(&text, named++ == 0 ? ": " : ", ", "island ", p.contribution.island, " of ",
                    p.worker);
  }
  return text;
}

}  // namespace

std::map<Version, std::vector<FillSource>> FindFillSources(const State& s, const Job& job) {
  std::map<Version, std::vector<FillSource>> sources;
  for (const auto& [id, island] : job.islands) {
    const Member* worker = s.FindMember(MemberKind::kWorker, island.worker);
    if (island.incarnation == 0 || worker == nullptr || !worker->attached || !worker->progress) {
      continue;
    }
    const IslandProgress& progress = *worker->progress;
    if (progress.job == job.id() && progress.generation == island.generation && progress.ready &&
        progress.base_version >= 0 && progress.base_version <= job.rounds.progress.version) {
      sources[progress.base_version].push_back({worker, &island});
    }
  }
  return sources;
}

Fill ChooseFill(const Job& job, const std::map<Version, std::vector<FillSource>>& sources,
                const std::vector<ShardPlacement>& lost) {
  const JobRecord& record = job.record;
  const Version decided = job.rounds.decided_version();
  if (sources.contains(decided)) return {};
  const bool fills = std::any_of(record.moves.begin(), record.moves.end(),
                                 [](const ShardMove& move) { return move.fill; });
  const bool others = fills && record.fill_version != 0;
  const bool goes_on = others && sources.contains(record.fill_base) &&
                       std::all_of(lost.begin(), lost.end(), [&](const ShardPlacement& shard) {
                         return IsFilled(record, shard.shard);
                       });
  if (goes_on) return {record.fill_version, record.fill_base};
  const Version base = sources.rbegin()->first;
  // Its bits are those of the decided version.
  if (!fills && !Concerns(job, base, decided, lost)) return {decided, base};
  // A round for every fragment: an island pulls all layers of the version, whatever its own one is.
  const Version after = others ? std::max(decided, record.fill_version) : decided;
  return {after + job.spec().outer.fragments, base};
}

Version GetFillBase(const Job& job) {
  return job.record.fill_version == 0 ? job.rounds.progress.version : job.record.fill_base;
}

bool HasExactSource(const State& s, const Job& job) {
  const JobRecord& record = job.record;
  if (record.fill_version != job.rounds.progress.version) return false;
  std::vector<ShardPlacement> filled;
  for (const ShardMove& move : record.moves) {
    if (move.fill) filled.push_back(GetPlacement(record, move.shard));
  }
  return !filled.empty() && !Concerns(job, record.fill_base, record.fill_version, filled) &&
         FindFillSources(s, job).contains(record.fill_version);
}

bool IsBeforeFill(const Job& job) {
  const std::vector<ShardMove>& moves = job.record.moves;
  return job.rounds.progress.version < job.record.fill_version &&
         std::any_of(moves.begin(), moves.end(), [](const ShardMove& move) { return move.fill; });
}

bool IsBeingFilled(const Job& job, const NodeId& server) {
  if (job.record.moves.empty() || job.rounds.links.at(server).known) return false;
  bool filled = true;
  ForEachSlotOn(job.record, server, [&](SlotId slot, const ShardPlacement&) {
    filled = filled && IsFilled(job.record, slot);
  });
  return filled;
}

std::string LostUpdates(const Job& job, const std::vector<ShardPlacement>& shards, Version base) {
  std::string text;
  int named = 0, more = 0;
  Version oldest = kNoVersion;  // of the decisions that are kept
  for (const auto& [round, decision] : job.rounds.decisions) {
    if (oldest == kNoVersion) oldest = decision.version;
    if (decision.version <= base || decision.participants.empty() ||
        !Concerns(job, decision.version - 1, decision.version, shards)) {
      continue;
    }
    if (named == kRoundsNamedMost) {
      ++more;
      continue;
    }
    absl::StrAppend(&text, named++ == 0 ? "" : ", ", "version ", decision.version, " (",
                    NameContributions(decision), ")");
  }
  if (oldest > base + 1) {
    text = absl::StrCat("all from version ", base + 1, " to ", oldest - 1, text.empty() ? "" : ", ",
                        text);
  }
  return more == 0 ? text : absl::StrCat(text, " and ", more, " more");
}

}  // namespace atl::coord
