#include "paramserver/core/job_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/net/tensor/tensor_types.h"
#include "common/protocol/experts.h"
#include "common/protocol/fragments.h"
#include "common/protocol/limits.h"
#include "common/protocol/outer_optimizer.h"
#include "common/status.h"
#include "kernels/add_delta.h"
#include "kernels/codecs/moments.h"
#include "kernels/host_ops.h"

namespace atl::ps {
namespace {

static_assert(kMaxContributions + 1 == kMaxDeltas);  // and a slot

}  // namespace

int64_t JobState::ParameterBytes(const AssignShards& assignment) {
  int64_t elements = 0;
  for (const OwnedShard& shard : assignment.shards) elements += shard.elements;
  return ServerBytesPerElement(assignment.definition.spec) * elements;
}

JobState::JobState(JobId job, ThreadPool* pool)
    : job_(std::move(job)), pool_(pool), ledger_(job_) {}

void JobState::ChangeLedger(LedgerChange change) {
  ledger_.Apply(change);
  ledger_changes_.push_back(std::move(change));
}

absl::StatusOr<std::unique_ptr<JobState>> JobState::FromSnapshot(const Snapshot& snapshot,
                                                                 ThreadPool* pool) {
  auto state = std::make_unique<JobState>(snapshot.job, pool);
  ATOLL_RETURN_IF_ERROR(Check(snapshot.assignment));
  state->ApplyRecord(0, AssignedRecord{snapshot.epoch, snapshot.assignment});
  if (snapshot.shards.size() != state->shards_.size()) {
    return absl::DataLossError("the snapshot does not hold the shards of its assignment");
  }
  const JobSpec& spec = snapshot.assignment.definition.spec;
  const size_t kept = snapshot.ended ? KeepsAverage(spec) : state->slots();
  const size_t slots = snapshot.version == kNoVersion ? 0 : kept;
  if (snapshot.slots != ListServerSlots(spec)) {
    return absl::DataLossError("the snapshot does not hold its outer optimizer's slots");
  }
  if (snapshot.exchange != SiteExchange() &&
      (!state->IsOfSite() || snapshot.version == kNoVersion)) {
    return absl::DataLossError("the snapshot has an exchange, and its job takes part in none");
  }
  if (snapshot.ended) state->ApplyRecord(0, EndedRecord{});
  for (const ShardSnapshot& from : snapshot.shards) {
    const auto found = state->shards_.find(from.shard.shard);
    if (found == state->shards_.end() || found->second.info != from.shard ||
        (from.theta == nullptr) != (snapshot.version == kNoVersion) || from.slots.size() != slots) {
      return absl::DataLossError(
          absl::StrCat("shard ", from.shard.shard, " in the snapshot is not as assigned"));
    }
    if (from.theta != nullptr) found->second.theta = from.theta->tensor();
    for (const auto& slot : from.slots) found->second.slots.push_back(slot->tensor());
  }
  state->version_ = snapshot.version;
  state->newest_ = snapshot.newest;
  state->exchange_ = snapshot.exchange;
  state->ledger_.Restore(snapshot.fences, snapshot.decided);
  return state;
}

absl::Status JobState::Check(const LogRecord& record) const {
  return std::visit([this](const auto& r) { return CheckRecord(r); }, record);
}

void JobState::Apply(LogSequence sequence, const LogRecord& record) {
  std::visit([&](const auto& r) { ApplyRecord(sequence, r); }, record);
}

void JobState::ApplyRecord(LogSequence, const AssignedRecord& record) {
  epoch_ = std::max(epoch_, record.epoch);
  const JobSpec& spec = record.assignment.definition.spec;
  optimizer_ = MakeOuterOptimizer(spec.outer);
  slots_ = ListServerSlots(spec).size();
  pull_encoding_ = spec.outer.pull_encoding;
  const bool changes = !assigned_ || assignment_.shards != record.assignment.shards;
  assignment_ = record.assignment;
  assigned_ = true;
  if (!changes) return;
  ChangeShards(record.assignment.shards);
  ChangeLedger(HeldShards{record.assignment.shards});
  parameter_bytes_ = ParameterBytes(record.assignment);
}

void JobState::ApplyRecord(LogSequence, const FencedRecord& record) { ChangeLedger(record); }

void JobState::ApplyRecord(LogSequence sequence, const PushedRecord& record) {
  // A replay applies commits in the order of the log, a running server when they are durable. A
  // push that came in between, of a contribution that the round dropped, is discarded in both.
  const ContributionId contribution = ToContributionId(record.id);
  if (ended_ || ledger_.IsDecided(contribution)) return;
  const auto [entry, added] = staged_.try_emplace({contribution, record.id.shard});
  StagedShard& staged = entry->second;
  if (!staged.pushes.insert(record.id).second) return;
  if (added) staged.first = sequence;
  staged.encoding = record.encoding;
  Put(record, shards_.at(record.id.shard).info.elements, staged);
  if (added) staged_bytes_ += static_cast<int64_t>(staged.payload.bytes.size());
  ChangeLedger(NotedPush{record.id});
}

// The first elements to come stay where others come again; all have the same bits.
void JobState::Put(const PushedRecord& record, int64_t elements, StagedShard& staged) {
  const ElementRange whole{0, elements};
  const ElementRange range = record.id.RangeIn(elements);
  if (staged.payload.bytes.empty() && range == whole) {
    staged.payload = record.payload;
    staged.covered.Add(whole);
    return;
  }
  if (staged.payload.bytes.empty()) {
    const auto bytes = std::make_shared<std::vector<std::byte>>(
        static_cast<size_t>(EncodedBytes(record.encoding, elements)));
    staged.parts = *bytes;
    staged.payload = {bytes, *bytes};
  }
  for (const ElementRange& gap : staged.covered.Missing(range)) {
    const auto at = [&](int64_t element) {
      return static_cast<size_t>(EncodedBytes(record.encoding, element));
    };
    const auto from = record.payload.bytes.subspan(
        at(gap.begin - range.begin), at(gap.end - range.begin) - at(gap.begin - range.begin));
    std::memcpy(staged.parts.data() + at(gap.begin), from.data(), from.size());
  }
  staged.covered.Add(range);
}

int64_t JobState::BytesToStage(const PushId& id, Encoding encoding) const {
  if (staged_.contains({ToContributionId(id), id.shard})) return 0;
  return EncodedBytes(encoding, shards_.at(id.shard).info.elements);
}

void JobState::ApplyRecord(LogSequence, const CommittedRecord& record) {
  ATOLL_CHECK(ApplyPart(record, std::numeric_limits<int64_t>::max()));
}

bool JobState::ApplyPart(const CommittedRecord& record, int64_t elements) {
  const auto tensors = static_cast<int64_t>(record.terms.size() + 1 + slots_);
  auto next = stepped_ ? shards_.upper_bound(*stepped_) : shards_.begin();
  for (; next != shards_.end() && elements > 0; ++next) {
    stepped_ = next->first;
    if (!HasTurn(record.version, next->second)) continue;
    if (record.version == 0 && record.step.adopts != kNoVersion) {
      SetZero(next->second);
    } else if (record.version == 0) {
      SetInitial(next->second, record.terms.front());
    } else {
      StepShard(next->second, record);
    }
    if (record.step.averages_moments) AverageShard(next->second, record);
    ExchangeShard(next->second, record);
    StepAverage(next->second, record.version == 0 ? 0 : record.step.average_keep);
    StepServed(next->second);
    elements -= tensors * next->second.info.elements;
  }
  if (next != shards_.end()) return false;
  stepped_.reset();
  version_ = record.version;
  newest_ = record;
  for (const RoundTerm& term : record.terms) Decide(term.contribution);
  for (const ContributionId& dropped : record.dropped) Decide(dropped);
  DropAllIncoming();  // they are of the version before
  if (record.step.adopts != kNoVersion && !IsOfSite()) {
    DropBase();
  } else if (record.step.adopts != kNoVersion) {
    exchange_.base = record.step.adopts;
    exchange_.based_at = record.version;
    if (base_version_ <= exchange_.base) DropBase();
  }
  if (record.step.contributes) exchange_.contributed_at = record.version;
  return true;
}

void JobState::ApplyRecord(LogSequence, const DroppedRecord& record) {
  for (const ContributionId& contribution : record.contributions) Decide(contribution);
}

void JobState::ApplyRecord(LogSequence, const EndedRecord&) {
  ended_ = true;
  ChangeLedger(ClosedLedger{absl::StrCat("job ", job_, " has ended")});
  while (!staged_.empty()) Decide(ContributionId(staged_.begin()->first.first));
  for (auto& [id, shard] : shards_) {
    // The islands' parameters are what was validated; nothing follows that needs the difference.
    if (shard.slots.empty()) continue;
    if (serves_apart()) shard.theta = shard.slots.back();
    const auto average = keeps_average() ? GetAverage(shard) : nullptr;
    shard.slots.clear();
    if (average != nullptr) shard.slots.push_back(average);
    shard.step.reset();
    shard.moments.reset();
  }
  DropAllIncoming();
  DropBase();
}

const JobState::StagedShard* JobState::FindStaged(const ContributionId& contribution,
                                                  ShardId shard) const {
  const auto found = staged_.find({contribution, shard});
  if (found == staged_.end()) return nullptr;
  const bool whole = found->second.covered.Covers({0, shards_.at(shard).info.elements});
  return whole ? &found->second : nullptr;
}

std::optional<JobState::StagedPush> JobState::FindPush(const PushId& id) const {
  const auto found = staged_.find({ToContributionId(id), id.shard});
  if (found == staged_.end() || !found->second.pushes.contains(id)) return std::nullopt;
  const StagedShard& staged = found->second;
  const ElementRange range = id.RangeIn(shards_.at(id.shard).info.elements);
  const auto at = [&](int64_t element) {
    return static_cast<size_t>(EncodedBytes(staged.encoding, element));
  };
  return StagedPush{staged.encoding,
                    range.size(),
                    {staged.payload.owner, staged.payload.bytes.subspan(
                                               at(range.begin), at(range.end) - at(range.begin))}};
}

void JobState::Decide(const ContributionId& contribution) {
  ChangeLedger(contribution);
  for (auto staged = staged_.lower_bound({contribution, std::numeric_limits<ShardId>::min()});
       staged != staged_.end() && staged->first.first == contribution;
       staged = staged_.erase(staged)) {
    staged_bytes_ -= static_cast<int64_t>(staged->second.payload.bytes.size());
  }
}

bool JobState::HasTurn(Version version, const Shard& shard) const {
  return IsInTurn(version, shard.info, FragmentsFrom(assignment_.definition.spec.outer));
}

void JobState::SetZero(Shard& shard) {
  shard.theta = std::make_shared<SharedTensor>(shard.info.elements);
  shard.slots.clear();
  for (size_t i = 0; i < slots_; ++i) {
    const auto& slot =
        shard.slots.emplace_back(std::make_shared<SharedTensor>(shard.info.elements));
    std::fill(slot->writable().begin(), slot->writable().end(), 0.0f);
  }
  const std::span<float> theta = shard.theta->writable();
  std::fill(theta.begin(), theta.end(), 0.0f);
}

void JobState::SetInitial(Shard& shard, const RoundTerm& term) {
  const StagedShard& push = *FindStaged(term.contribution, shard.info.shard);
  SetZero(shard);
  // theta = 0 - (-1) * weight * delta.
  const WeightedDelta delta{{push.payload.bytes.data(), push.encoding, shard.info.elements},
                            static_cast<float>(term.weight)};
  OuterSgd(shard.theta->writable(), std::span(&delta, 1), /*eta=*/-1, *pool_);
}

bool JobState::HoldsStatistics(const OwnedShard& shard) const {
  const std::vector<LayerSize>& layers = assignment_.definition.facts.layers;
  if (shard.layer < 0 || shard.layer >= std::ssize(layers)) return false;
  const LayerSize& layer = layers[static_cast<size_t>(shard.layer)];
  return shard.begin >= layer.elements - layer.statistics;
}

std::vector<WeightedDelta> JobState::WeighTerms(const OwnedShard& shard,
                                                const CommittedRecord& round) const {
  std::vector<double> weights;
  for (const RoundTerm& term : round.terms) weights.push_back(term.weight);
  for (const LayerStep& layer : round.step.layers) {
    if (layer.layer == shard.layer && !HoldsStatistics(shard)) weights = layer.weights;
  }
  if (shard.expert >= 0) weights = WeighExpert(round.terms, shard.expert, std::move(weights));
  std::vector<WeightedDelta> deltas;
  for (size_t i = 0; i < round.terms.size(); ++i) {
    if (!IsSeen(round.terms[i].expert_tokens, shard)) continue;
    const StagedShard& push = *FindStaged(round.terms[i].contribution, shard.shard);
    deltas.push_back({{push.payload.bytes.data(), push.encoding, shard.elements},
                      static_cast<float>(weights[i])});
  }
  return deltas;
}

void JobState::StepShard(Shard& shard, const CommittedRecord& round) {
  std::vector<WeightedDelta> deltas = WeighTerms(shard.info, round);
  // No island has pushed the fragment or seen the expert, or shards are to be filled.
  if (deltas.empty()) return;
  MakeWritable(shard.theta);
  if (HoldsStatistics(shard.info)) {
    // The weights are shares of tokens, all clipped alike.
    float sum = 0;
    for (const WeightedDelta& delta : deltas) sum += delta.weight;
    for (WeightedDelta& delta : deltas) delta.weight = sum > 0 ? delta.weight / sum : 0;
    return OuterSgd(shard.theta->writable(), deltas, /*eta=*/1, *pool_);
  }
  const OuterSpec& outer = assignment_.definition.spec.outer;
  OuterShard state{shard.theta->writable(), {}};
  for (size_t i = 0; i < GetOuterOptimizer(outer).slots.size(); ++i) {
    MakeWritable(shard.slots[i]);
    state.slots.push_back(shard.slots[i]->writable());
  }
  const double rate = round.step.learning_rate;
  optimizer_->Step(
      state,
      {deltas, rate != 0 ? rate : assignment_.outer_learning_rate, assignment_.outer_momentum,
       CountTurns(round.version, shard.info, FragmentsFrom(outer))},
      *pool_);
}

// average <- keep average + (1 - keep) theta.
void JobState::StepAverage(Shard& shard, double keep) {
  if (!keeps_average() || keep == 1) return;
  // Experts that have turns have the steps of as many rounds.
  const int64_t experts = assignment_.definition.spec.outer.expert_fragments;
  if (shard.info.expert >= 0) keep = std::pow(keep, static_cast<double>(experts));
  MakeWritable(GetAverage(shard));
  const std::span<float> average = GetAverage(shard)->writable();
  const int64_t size = shard.theta->elements();
  const std::array difference{
      WeightedDelta{{average.data(), Encoding::kFloat32, size}, 1},
      WeightedDelta{{shard.theta->values().data(), Encoding::kFloat32, size}, -1}};
  OuterSgd(average, difference, static_cast<float>(1 - keep), *pool_);
}

void JobState::AverageShard(Shard& shard, const CommittedRecord& round) {
  std::vector<DeltaView> deltas;
  std::vector<double> weights;
  double sum = 0;
  for (const RoundTerm& term : round.terms) {
    const StagedShard* push = FindStaged(term.contribution, shard.info.shard);
    if (push == nullptr || !HasMoments(push->encoding) || term.weight <= 0) continue;
    deltas.push_back({push->payload.bytes.data(), push->encoding, shard.info.elements});
    weights.push_back(term.weight);
    sum += term.weight;
  }
  if (deltas.empty()) return;
  for (double& weight : weights) weight /= sum;
  std::shared_ptr<SharedTensor>& ratios = shard.slots[ratio_slot()];
  std::shared_ptr<SharedTensor>& second = shard.slots[ratio_slot() + 1];
  MakeWritable(ratios);
  MakeWritable(second);
  AverageMoments(deltas, weights, ratios->writable(), second->writable(), *pool_);
  shard.moments.reset();
}

// theta has advanced: the islands' copy follows by a quantised step. The rounding error stays in
// the difference and goes into the next step. Initial weights and running statistics are served
// unchanged.
void JobState::StepServed(Shard& shard) {
  shard.step.reset();
  if (!serves_apart()) return;
  std::shared_ptr<SharedTensor>& served = shard.slots.back();
  MakeWritable(served);
  const std::span<const float> theta = shard.theta->values();
  const std::span<float> values = served->writable();
  if (version_ == kNoVersion || HoldsStatistics(shard.info)) {
    std::copy(theta.begin(), theta.end(), values.begin());
    return;
  }
  const int64_t elements = shard.info.elements;
  const auto step = std::make_shared<std::vector<float>>(
      static_cast<size_t>(EncodedWords(pull_encoding_, elements)));
  const auto bytes = std::as_writable_bytes(std::span(*step))
                         .first(static_cast<size_t>(EncodedBytes(pull_encoding_, elements)));
  StepToward(pull_encoding_, theta, values, bytes, *pool_);
  shard.step = step;
}

void JobState::MakeWritable(std::shared_ptr<SharedTensor>& tensor) {
  if (!tensor->leased()) return;
  std::erase_if(replaced_, [](const auto& old) { return old.expired(); });
  replaced_.push_back(tensor);
  auto copy = std::make_shared<SharedTensor>(tensor->elements());
  std::memcpy(copy->writable().data(), tensor->values().data(),
              static_cast<size_t>(tensor->bytes()));
  tensor = std::move(copy);
}

std::shared_ptr<const Snapshot> JobState::TakeSnapshot(LogSequence last_sequence) const {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->job = job_;
  snapshot->version = version_;
  snapshot->last_sequence = last_sequence;
  snapshot->replay_from = last_sequence + 1;
  snapshot->epoch = epoch_;
  snapshot->ended = ended_;
  snapshot->assignment = assignment_;
  snapshot->newest = newest_;
  snapshot->fences = ledger_.Fences();
  snapshot->decided = ledger_.Decided();
  snapshot->staged = Staged();
  if (assigned_) snapshot->slots = ListServerSlots(assignment_.definition.spec);
  for (const auto& [key, staged] : staged_) {
    snapshot->replay_from = std::min(snapshot->replay_from, staged.first);
  }
  for (const auto& [id, incoming] : incoming_) {
    snapshot->replay_from = std::min(snapshot->replay_from, incoming.first);
  }
  for (const auto& [id, base] : base_) {
    snapshot->replay_from = std::min(snapshot->replay_from, base.first);
  }
  snapshot->exchange = exchange_;
  for (const auto& [id, shard] : shards_) {
    ShardSnapshot& to = snapshot->shards.emplace_back();
    to.shard = shard.info;
    if (shard.theta != nullptr) to.theta = std::make_shared<const TensorLease>(shard.theta);
    for (const auto& slot : shard.slots) {
      to.slots.push_back(std::make_shared<const TensorLease>(slot));
    }
  }
  return snapshot;
}

std::shared_ptr<SharedTensor> JobState::Theta(ShardId shard) const {
  const auto found = shards_.find(shard);
  return found == shards_.end() ? nullptr : found->second.theta;
}

std::shared_ptr<SharedTensor> JobState::Served(ShardId shard) const {
  const bool apart = serves_apart() && slots_ > 0 && !ended_;
  return apart ? Slot(shard, slots_ - 1) : Theta(shard);
}

std::shared_ptr<const std::vector<float>> JobState::EncodedStep(ShardId shard) const {
  const auto found = shards_.find(shard);
  return found == shards_.end() ? nullptr : found->second.step;
}

std::shared_ptr<const std::vector<float>> JobState::EncodedMoments(ShardId shard) const {
  const auto found = shards_.find(shard);
  if (found == shards_.end() || ended_ || !averages_moments() || found->second.slots.empty())
    return nullptr;
  const Shard& from = found->second;
  if (from.moments == nullptr) {
    const int64_t elements = from.info.elements;
    const auto words = std::make_shared<std::vector<float>>(
        static_cast<size_t>(EncodedWords(Encoding::kMomentsAlone, elements)));
    const auto bytes =
        std::as_writable_bytes(std::span(*words))
            .first(static_cast<size_t>(EncodedBytes(Encoding::kMomentsAlone, elements)));
    EncodeRatios(Encoding::kMomentsAlone, from.slots[ratio_slot()]->values(),
                 from.slots[ratio_slot() + 1]->values(), bytes);
    from.moments = words;
  }
  return from.moments;
}

std::shared_ptr<SharedTensor> JobState::Slot(ShardId shard, size_t slot) const {
  const auto found = shards_.find(shard);
  return found == shards_.end() || ended_ || slot >= found->second.slots.size()
             ? nullptr
             : found->second.slots[slot];
}

std::shared_ptr<SharedTensor> JobState::Average(ShardId shard) const {
  if (!ended_) return keeps_average() ? Slot(shard, average_slot()) : nullptr;
  const auto found = shards_.find(shard);
  return found == shards_.end() || found->second.slots.empty() ? nullptr
                                                               : found->second.slots.front();
}

int64_t JobState::stale_bytes() const {
  int64_t bytes = 0;
  for (const auto& old : replaced_) {
    if (const auto tensor = old.lock()) bytes += tensor->bytes();
  }
  return bytes;
}

std::vector<PushId> JobState::Staged() const {
  std::vector<PushId> ids;
  for (const auto& [key, staged] : staged_) {
    ids.insert(ids.end(), staged.pushes.begin(), staged.pushes.end());
  }
  return ids;
}

}  // namespace atl::ps
