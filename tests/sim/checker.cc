#include "tests/sim/checker.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/protocol/fragments.h"
#include "common/protocol/outer_optimizer.h"
#include "coordinator/core/shards/replicas.h"
#include "kernels/add_delta.h"
#include "kernels/bfloat16.h"
#include "kernels/host_ops.h"
#include "paramserver/core/outer_optimizer.h"
#include "worker/core/core.h"
#include "worker/core/leases.h"

namespace atl::sim {

std::string Describe(const ContributionId& id) {
  return absl::StrCat("island ", id.island, " generation ", id.generation, " incarnation ",
                      id.incarnation, " base ", id.base_version);
}

void Checker::DeltaCaptured(const ContributionId& id, const LayerValues& delta,
                            std::vector<PositionRange> trained_on, const LayerValues& ratios,
                            const LayerValues& second) {
  const auto [it, fresh] = captured_.try_emplace(id, Captured{delta, trained_on, ratios, second});
  if (!fresh && (it->second.delta != delta || it->second.ratios != ratios)) {
    Fail(absl::StrCat("N2: two different pseudo-gradients under one name: ", Describe(id)));
  }
}

void Checker::Persisted(const StoreRecord& record) {
  if (const auto* decision = std::get_if<DecisionRecord>(&record)) Decided(*decision);
  if (const auto* progress = std::get_if<ProgressRecord>(&record)) {
    if (progress->version < newest_committed_) {
      Fail(absl::StrCat("N1: committed version fell from ", newest_committed_, " to ",
                        progress->version));
    }
    newest_committed_ = progress->version;
  }
  if (const auto* job = std::get_if<JobRecord>(&record)) OnPlaced(*job);
}

// Who holds which shard; what is filled has no momentum from then on.
void Checker::OnPlaced(const JobRecord& record) {
  if (record.removed || record.shards.empty() || record.placement < placement_) return;
  if (record.site) NameContribution(*record.site);
  const auto missing = [](const std::vector<ShardPlacement>& copies) {
    return std::count_if(copies.begin(), copies.end(),
                         [](const ShardPlacement& copy) { return copy.server.empty(); });
  };
  std::vector<ShardPlacement> copies;
  if (record.spec.outer.shard_copies == 2) {
    copies = ListPlacements(record.shards, ReplicaRole::kStandby);
  }
  if (!copies_.empty() && missing(copies) > missing(copies_)) ++dropped_;
  placement_ = record.placement;
  shards_ = ListPlacements(record.shards);
  copies_ = std::move(copies);
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].server != shards_[i].server) continue;
    Fail(absl::StrCat("N1: both copies of shard ", i, " are on one server"));
  }
  for (const ShardDescriptor& shard : record.shards) {
    const auto model = expected_.find(shard.filled_at);
    if (model == expected_.end() || !refilled_.emplace(shard.shard, shard.filled_at).second) {
      continue;
    }
    // By an island, which has what was served then.
    const auto base = expected_.find(shard.filled_at - shard.filled_age);
    if (base == expected_.end()) {
      Fail(absl::StrCat("shard ", shard.shard, " is filled from an unknown version"));
      return;
    }
    const auto served = base->second.served[shard.layer].begin() + shard.begin;
    for (LayerValues* values : {&model->second.theta, &model->second.served}) {
      std::copy(served, served + shard.elements, (*values)[shard.layer].begin() + shard.begin);
    }
    for (LayerValues& slot : model->second.slots) {
      const auto begin = slot[shard.layer].begin() + shard.begin;
      std::fill(begin, begin + shard.elements, 0.0f);
    }
    for (LayerValues* values : {&model->second.ratios, &model->second.second}) {
      const auto begin = (*values)[shard.layer].begin() + shard.begin;
      std::fill(begin, begin + shard.elements, 0.0f);
    }
  }
}

bool Checker::Holds(const NodeId& server) const {
  const auto its = [&](const ShardPlacement& shard) { return shard.server == server; };
  return std::any_of(shards_.begin(), shards_.end(), its) ||
         std::any_of(copies_.begin(), copies_.end(), its);
}

bool Checker::HasTwoOfEach() const {
  return !copies_.empty() &&
         std::none_of(copies_.begin(), copies_.end(),
                      [](const ShardPlacement& copy) { return copy.server.empty(); });
}

void Checker::Deleted(const NodeId& member) {
  if (removal_requested_ || end_persisted_) return;
  if (!IsOfSite() && placement_ > 0 && !Holds(member)) return;
  Fail(absl::StrCat("N10: ", member, " deletes the job, without a request"));
}

void Checker::Ended(const NodeId& server) {
  if (IsOfSite()) {
    if (!end_persisted_) Fail(absl::StrCat("N10: ", server, " ends the job of a site"));
    return;
  }
  const int64_t budget = spec_.schedule.train_tokens / spec_.data.sequence_length;
  if (static_cast<int64_t>(committed_positions_.size()) == budget) return;
  Fail(absl::StrCat("N10: ", server, " ends the job after ", committed_positions_.size(), " of ",
                    budget, " sequences"));
}

// The rounds from this one on were decided in a store that is lost, and made nowhere.
void Checker::TakeBack(int64_t round) {
  for (auto it = made_.lower_bound(round); it != made_.end(); it = made_.erase(it)) {
    const Made& made = it->second;
    if (made.version != kNoVersion && made.version <= newest_applied_) {
      Fail(absl::StrCat("N1: version ", made.version, " was applied and is decided otherwise"));
    }
    for (const RoundTerm& term : made.terms) used_.erase(term.contribution);
    for (const int64_t position : made.positions) committed_positions_.erase(position);
    tokens_ -= made.tokens;
    if (made.version == kNoVersion) continue;
    contributions_.erase(made.version);
    decided_.erase(made.version);
    terms_.erase(made.version);
    rounds_.erase(made.version);
    expected_.erase(made.version);
    newest_decided_ = std::min(newest_decided_, made.version - 1);
  }
  newest_round_ = round - 1;
}

bool Checker::Take(const DecisionParticipant& p, Made& made) {
  if (p.reason.empty()) Fail(absl::StrCat("no reason for ", Describe(p.contribution)));
  if (!p.accepted) {
    ++rejected_;
    all_.NotTaken(p.contribution);
    return true;
  }
  if (!used_.insert(p.contribution).second) {
    Fail(absl::StrCat("N2: decided twice: ", Describe(p.contribution)));
  }
  const auto captured = captured_.find(p.contribution);
  if (captured == captured_.end()) {
    Fail(absl::StrCat("decided a contribution that was not made: ", Describe(p.contribution)));
    return false;
  }
  int64_t positions = 0;
  for (const PositionRange& range : captured->second.trained_on) {
    positions += range.size();
    for (int64_t position = range.begin; position < range.end; ++position) {
      made.positions.push_back(position);
      if (!committed_positions_.emplace(position, p.contribution.island).second) {
        Fail(absl::StrCat("N5: position ", position, " is in the model twice, by ",
                          Describe(p.contribution)));
      }
    }
  }
  if (p.tokens != positions * spec_.data.sequence_length) {
    Fail(absl::StrCat("N5: ", Describe(p.contribution), " counts ", p.tokens, " tokens for ",
                      positions, " sequences"));
  }
  tokens_ += p.tokens;
  made.tokens += p.tokens;
  return true;
}

void Checker::Decided(const DecisionRecord& decision) {
  std::vector<RoundTerm> terms;
  for (const DecisionParticipant& p : decision.participants) {
    if (p.accepted) terms.push_back({p.contribution, p.weight, p.tokens, p.expert_tokens});
  }
  if (decision.round <= newest_round_) {
    const auto before = made_.find(decision.round);
    const bool same = before != made_.end() && before->second.version == decision.version &&
                      before->second.terms == terms &&
                      before->second.step.adopts == decision.step.adopts &&
                      before->second.step.contributes == decision.step.contributes;
    if (same || !replaced_) return;  // the same record written again
    TakeBack(decision.round);
  }
  newest_round_ = decision.round;
  Made& made = made_[decision.round];
  made = {decision.version, terms, {}, 0, decision.step};
  for (const RoundTerm& term : terms) {
    const int64_t fragments = FragmentsFrom(spec_.outer).count();
    if ((decision.version - 1 - term.contribution.base_version) % fragments == 0) continue;
    if (decision.version > 0) {
      Fail(absl::StrCat("N3: version ", decision.version, " takes another fragment, of ",
                        Describe(term.contribution)));
    }
  }
  for (const DecisionParticipant& p : decision.participants) {
    if (!Take(p, made)) return;
    CheckVouched(decision, p);
  }
  CheckWeights(decision);
  if (decision.version == kNoVersion) return;
  if (decision.version != newest_decided_ + 1) {
    Fail(absl::StrCat("round decided for version ", decision.version, " after ", newest_decided_));
  }
  newest_decided_ = decision.version;
  // That of a site's job is an estimate of what all have trained.
  if (!IsOfSite() && decision.tokens_committed_after != tokens_) {
    Fail(absl::StrCat("N5: ", decision.tokens_committed_after, " tokens recorded, ", tokens_,
                      " committed"));
  }
  rounds_[decision.version] = {decision.job, decision.version, std::move(terms), decision.dropped,
                               {},           decision.step};
  if (IsOfSite()) NoteContribution(decision);
  if (decision.participants.empty()) ExpectAll();
}

// Shards are filled at a version without contributions, though there may be no server left to which
// its round is sent.
void Checker::ExpectAll() {
  for (const auto& [version, round] : rounds_) {
    if (!terms_.contains(version)) CommitSent(round, shards_);
  }
}

// A push is rejected if it is not what was vouched for, and only then.
void Checker::CheckVouched(const DecisionRecord& decision, const DecisionParticipant& p) {
  const bool lied = all_.lies() && p.worker == kHostileWorker && decision.version != 0;
  const bool is_unfit = !p.accepted && p.limit == 0;  // the outlier rule always has a limit
  if (lied ? !p.accepted : !is_unfit) return;
  Fail(absl::StrCat(Describe(p.contribution), lied ? " counts, and" : " is rejected, though it",
                    " was vouched for", lied ? " falsely" : ""));
}

// Weights are token shares times clips, and the clipped pseudo-gradient is as short as requested.
void Checker::CheckWeights(const DecisionRecord& decision) {
  std::vector<RoundTerm>& terms = decided_[decision.version];
  terms.clear();
  int64_t tokens = 0;
  for (const DecisionParticipant& p : decision.participants) {
    if (p.accepted) tokens += p.tokens;
  }
  const bool by_tokens =
      spec_.outer.max_share == 1 && (spec_.outer.merge == "mean" || MergesByLayer(spec_.outer));
  double weights = 0;
  LayerValues sum;
  for (const DecisionParticipant& p : decision.participants) {
    if (!p.accepted) continue;
    weights += p.weight;
    terms.push_back({p.contribution, p.weight, p.tokens, p.expert_tokens});
    if (decision.version == 0) continue;
    const double share = static_cast<double>(p.tokens) / static_cast<double>(tokens);
    // Robust merges move shares between islands, within the round.
    const double most = by_tokens ? share : 1;
    if (p.clip < 0 || p.clip > 1 || p.weight > most * p.clip * decision.clip_scale + 1e-9 ||
        (by_tokens && p.weight < share * p.clip * decision.clip_scale - 1e-9) || !(p.weight > 0)) {
      Fail(absl::StrCat(Describe(p.contribution), " weighs ", p.weight, " for a share of ", share));
    }
    const LayerValues& delta = captured_.at(p.contribution).delta;
    sum.resize(delta.size());
    for (size_t l = 0; l < delta.size(); ++l) {
      const std::vector<float> values = Encoded(delta[l]);
      sum[l].resize(values.size());
      double weight = p.weight;
      for (const LayerStep& step : decision.step.layers) {
        if (step.layer == static_cast<int32_t>(l)) weight = step.weights.at(terms.size() - 1);
      }
      for (size_t i = 0; i < values.size(); ++i) {
        sum[l][i] += static_cast<float>(weight) * values[i];
      }
    }
  }
  if (weights > 1 + 1e-9) Fail(absl::StrCat("round ", decision.round, " weighs ", weights));
  double square = 0;
  for (const std::vector<float>& layer : sum) {
    for (const float x : layer) square += static_cast<double>(x) * x;
  }
  const double longest = spec_.outer.clip_norm;
  if (longest > 0 && std::sqrt(square) > longest * 1.001) {
    Fail(absl::StrCat("round ", decision.round, " moves the model by ", std::sqrt(square),
                      ", more than ", longest));
  }
}

void Checker::CommitSent(const CommitRound& commit, const std::vector<ShardPlacement>&) {
  if (commit.version > newest_decided_) {
    Fail(absl::StrCat("N1: version ", commit.version, " sent before it was persisted"));
  }
  if (const auto decided = decided_.find(commit.version);
      decided != decided_.end() && decided->second != commit.terms) {
    Fail(absl::StrCat("N1: version ", commit.version, " is sent otherwise than it was persisted"));
  }
  const auto [it, fresh] = terms_.try_emplace(commit.version, commit.terms);
  if (!fresh && it->second != commit.terms) {
    Fail(absl::StrCat("N1: version ", commit.version, " was decided differently before"));
  }
  if (const auto round = rounds_.find(commit.version);
      round != rounds_.end() && (round->second.step.adopts != commit.step.adopts ||
                                 round->second.step.contributes != commit.step.contributes)) {
    Fail(
        absl::StrCat("N1: version ", commit.version, " exchanges otherwise than it was persisted"));
  }
  if (fresh) Expect(commit);
}

std::vector<float> Checker::Encoded(const std::vector<float>& values) const {
  std::vector<float> out = values;
  if (spec_.outer.push_encoding == Encoding::kBfloat16) {
    std::vector<Bfloat16> narrow(values.size());
    ToBfloat16(values, narrow, pool_);
    std::transform(narrow.begin(), narrow.end(), out.begin(), WidenBfloat16);
  }
  return out;
}

// The model that this round must give, by the same arithmetic that servers use.
void Checker::Expect(const CommitRound& commit) {
  Model model;
  if (commit.version > 0) {
    const auto before = expected_.find(commit.version - 1);
    if (before == expected_.end()) {
      Fail(absl::StrCat("version ", commit.version, " sent without the one before it"));
      return;
    }
    model = before->second;
  }
  const size_t layers = ToyLayers().size();
  for (LayerValues* values : {&model.theta, &model.ratios, &model.second}) values->resize(layers);
  model.slots.resize(GetOuterOptimizer(spec_.outer).slots.size(), LayerValues(layers));
  const bool begins_from_above = IsOfSite() && commit.version == 0;
  const auto optimizer = ps::MakeOuterOptimizer(spec_.outer);
  const Fragments fragments = FragmentsFrom(spec_.outer);
  for (size_t l = 0; l < layers; ++l) {
    // N3: a round makes one fragment, of all its contributions, and leaves the others as they are.
    if (!IsInTurn(commit.version, OwnedShard{0, static_cast<int32_t>(l)}, fragments)) continue;
    if ((commit.version > 0 || begins_from_above) && commit.terms.empty()) continue;
    std::vector<std::vector<float>> deltas;
    std::vector<WeightedDelta> weighted;
    deltas.reserve(commit.terms.size());
    for (const RoundTerm& term : commit.terms) {
      const auto captured = captured_.find(term.contribution);
      if (captured == captured_.end()) {
        Fail(absl::StrCat("committed what was not captured: ", Describe(term.contribution)));
        return;
      }
      // Initial weights travel in full.
      deltas.push_back(commit.version == 0 ? captured->second.delta[l]
                                           : Encoded(captured->second.delta[l]));
      weighted.push_back(
          {{deltas.back().data(), Encoding::kFloat32, static_cast<int64_t>(deltas.back().size())},
           static_cast<float>(term.weight)});
    }
    if (commit.version == 0) {
      model.theta[l] = deltas.at(0);
      for (float& x : model.theta[l]) x *= weighted[0].weight;
      for (LayerValues& slot : model.slots) slot[l].assign(model.theta[l].size(), 0.0f);
      model.ratios[l].assign(model.theta[l].size(), 0.0f);
      model.second[l].assign(model.theta[l].size(), 0.0f);
      continue;
    }
    ps::OuterShard shard{model.theta[l], {}};
    for (LayerValues& slot : model.slots) shard.slots.emplace_back(slot[l]);
    for (const LayerStep& step : commit.step.layers) {
      if (step.layer != static_cast<int32_t>(l)) continue;
      for (size_t i = 0; i < weighted.size(); ++i) {
        weighted[i].weight = static_cast<float>(step.weights.at(i));
      }
    }
    optimizer->Step(shard,
                    {weighted, commit.step.learning_rate, spec_.outer.momentum,
                     CountTurns(commit.version, OwnedShard{0, static_cast<int32_t>(l)}, fragments)},
                    pool_);
  }
  if (commit.step.adopts != kNoVersion) ExpectAdopted(commit.step.adopts, model);
  if (commit.step.contributes) ExpectContributed(commit.version, model);
  if (commit.step.averages_moments) ExpectMoments(commit, model);
  Serve(commit.version, model);
  expected_[commit.version] = std::move(model);
}

// Each shard's quantised step is its own.
void Checker::Serve(Version version, Model& model) {
  const Encoding encoding = spec_.outer.pull_encoding;
  if (version == 0 || !IsQuantized(encoding)) {
    model.served = model.theta;
    return;
  }
  for (const ShardPlacement& shard : shards_) {
    if (!IsInTurn(version, shard, FragmentsFrom(spec_.outer))) continue;
    const auto elements = static_cast<size_t>(shard.elements);
    const auto theta =
        std::span(model.theta[shard.layer]).subspan(static_cast<size_t>(shard.begin), elements);
    const auto served =
        std::span(model.served[shard.layer]).subspan(static_cast<size_t>(shard.begin), elements);
    std::vector<float> step(elements);
    for (size_t i = 0; i < elements; ++i) step[i] = theta[i] - served[i];
    std::vector<std::byte> bytes(static_cast<size_t>(EncodedBytes(encoding, shard.elements)));
    EncodeDelta(encoding, step, {}, bytes, pool_);
    AddDelta({bytes.data(), encoding, shard.elements}, served, served, pool_);
  }
}

void Checker::Staged(const NodeId& server, const PushId& push, Version version,
                     const std::map<IslandId, IslandFence>& fences) {
  const ContributionId id = ToContributionId(push);
  for (const auto& [applied, terms] : terms_) {
    if (applied > version) break;
    for (const RoundTerm& term : terms) {
      if (term.contribution == id) {
        Fail(absl::StrCat("N2: ", server, " takes again what version ", applied,
                          " is made of: ", Describe(id)));
      }
    }
  }
  const auto fence = fences.find(id.island);
  if (fence == fences.end()) return;
  const IslandFence& now = fence->second;
  if (std::pair(id.generation, id.incarnation) < std::pair(now.generation, now.incarnation)) {
    Fail(absl::StrCat("N7: ", server, " takes a push from the past, ", Describe(id),
                      "; the island is at generation ", now.generation));
  }
}

void Checker::Served(const NodeId& server, Version version, const ShardPlacement& shard,
                     std::span<const float> values) {
  const auto model = expected_.find(version);
  if (model == expected_.end()) {
    Fail(absl::StrCat("N3: ", server, " serves version ", version, ", which was never sent"));
    return;
  }
  const std::vector<float>& layer = model->second.served[shard.layer];
  const bool same =
      static_cast<int64_t>(values.size()) == shard.elements &&
      std::memcmp(values.data(), layer.data() + shard.begin, values.size() * sizeof(float)) == 0;
  if (!same) {
    Fail(absl::StrCat("N1-N3: ", server, " serves version ", version, " of shard ", shard.shard,
                      " with other bits than the decided rounds give"));
  }
}

void Checker::Adopted(const NodeId& worker, Version version, const LayerValues& base) {
  const auto model = expected_.find(version);
  if (model == expected_.end() || model->second.served != base) {
    Fail(absl::StrCat("N3: ", worker, " trains from a torn version ", version));
  }
}

void Checker::AtRisk(const NodeId& worker, const std::vector<PositionRange>& trained_on,
                     int64_t carried, bool captured) {
  const int64_t sequences = worker::Sequences(trained_on);
  // See worker/core: a contribution is made H steps after an adoption, of those and of what was
  // trained during the exchange before; until the next adoption the island trains on for a while.
  const int64_t round = StepsBetweenPushes(spec_.outer) * spec_.inner.batch_sequences;
  const int64_t longest = worker::kMaxCarriedRounds * round;
  const int64_t most = captured ? longest : std::min(longest, carried + round);
  if (sequences > most) {
    Fail(absl::StrCat("N4: ", worker, " would lose ", sequences, " sequences, more than ", most,
                      captured ? ", in an exchange" : "", " (", carried, " carried, pushes are ",
                      StepsBetweenPushes(spec_.outer), " steps apart)"));
  }
}

void Checker::Finished(const ProgressRecord& progress, int64_t budget_positions) {
  if (progress.version != newest_decided_) {
    Fail(
        absl::StrCat("finished at version ", progress.version, ", decided were ", newest_decided_));
  }
  if (progress.tokens_committed != tokens_) {
    Fail(absl::StrCat("N5: finished with ", progress.tokens_committed, " tokens, ", tokens_,
                      " were committed"));
  }
  const auto positions = static_cast<int64_t>(committed_positions_.size());
  if (positions != budget_positions ||
      (positions > 0 && committed_positions_.rbegin()->first != budget_positions - 1)) {
    Fail(absl::StrCat("N5: ", positions, " of ", budget_positions, " sequences are in the model"));
  }
}

}  // namespace atl::sim
