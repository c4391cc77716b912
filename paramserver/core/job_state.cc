#include "paramserver/core/job_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/net/tensor/tensor_types.h"
#include "common/protocol/fragments.h"
#include "common/protocol/limits.h"
#include "common/protocol/outer_optimizer.h"
#include "common/status.h"
#include "kernels/add_delta.h"
#include "kernels/host_ops.h"

namespace atl::ps {
namespace {

static_assert(kMaxContributions + 1 == kMaxDeltas);  // and a slot

constexpr int64_t kJobElementsMax = int64_t{1} << 40;  // of all its shards here

// It names a folder on the disk.
bool IsJobName(const JobId& job) {
  return !job.empty() && job.size() <= 200 && job.front() != '.' &&
         std::all_of(job.begin(), job.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

std::string Name(const ContributionId& id) {
  return absl::StrCat("island ", id.island, " (generation ", id.generation, ", incarnation ",
                      id.incarnation, ", base version ", id.base_version, ")");
}

}  // namespace

absl::Status JobState::Check(const AssignShards& assignment) {
  const auto bad = [](auto... args) {
    return absl::InvalidArgumentError(absl::StrCat("assignment: ", args...));
  };
  if (!IsJobName(assignment.job)) return bad("\"", assignment.job, "\" is no name of a job");
  if (assignment.shards.size() > kMaxShards) {
    return bad(assignment.shards.size(), " shards; at most ", kMaxShards, " are possible");
  }
  if (!std::isfinite(assignment.outer_learning_rate)) return bad("the outer rate is not finite");
  if (!(assignment.outer_momentum >= 0 && assignment.outer_momentum < 1)) {
    return bad("outer momentum ", assignment.outer_momentum, " is not at least 0 and below 1");
  }
  ATOLL_RETURN_IF_ERROR(
      Annotate(ValidateOuterChoice(assignment.definition.spec.outer), "assignment"));
  ATOLL_RETURN_IF_ERROR(Annotate(ValidateCounts(assignment.definition.spec), "assignment"));
  std::set<ShardId> seen;
  int64_t elements = 0;
  for (const OwnedShard& shard : assignment.shards) {
    if (!seen.insert(shard.shard).second) return bad("shard ", shard.shard, " comes twice");
    if (shard.elements <= 0 || shard.elements > kJobElementsMax - elements) {
      return bad("shard ", shard.shard, " has ", shard.elements, " elements");
    }
    elements += shard.elements;
  }
  return absl::OkStatus();
}

int64_t JobState::ParameterBytes(const AssignShards& assignment) {
  int64_t elements = 0;
  for (const OwnedShard& shard : assignment.shards) elements += shard.elements;
  return ServerBytesPerElement(assignment.definition.spec.outer) * elements;
}

JobState::JobState(JobId job, ThreadPool* pool)
    : job_(std::move(job)),
      pool_(pool),
      ledger_(std::make_shared<PushLedger>(job_, std::span<const OwnedShard>())) {}

absl::StatusOr<std::unique_ptr<JobState>> JobState::FromSnapshot(const Snapshot& snapshot,
                                                                 ThreadPool* pool) {
  auto state = std::make_unique<JobState>(snapshot.job, pool);
  ATOLL_RETURN_IF_ERROR(Check(snapshot.assignment));
  state->ApplyRecord(0, AssignedRecord{snapshot.epoch, snapshot.assignment});
  if (snapshot.shards.size() != state->shards_.size()) {
    return absl::DataLossError("the snapshot does not hold the shards of its assignment");
  }
  const size_t slots = snapshot.version == kNoVersion || snapshot.ended ? 0 : state->slots();
  if (snapshot.slots != ListServerSlots(snapshot.assignment.definition.spec.outer)) {
    return absl::DataLossError("the snapshot does not hold its outer optimizer's slots");
  }
  if (snapshot.exchange != SiteExchange() &&
      (!state->IsOfSite() || snapshot.version == kNoVersion)) {
    return absl::DataLossError("the snapshot has an exchange, and its job takes part in none");
  }
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
  state->ledger_->Restore(snapshot.fences, snapshot.decided);
  if (snapshot.ended) state->ApplyRecord(0, EndedRecord{});
  return state;
}

absl::Status JobState::Check(const LogRecord& record) const {
  return std::visit([this](const auto& r) { return CheckRecord(r); }, record);
}

void JobState::Apply(LogSequence sequence, const LogRecord& record) {
  std::visit([&](const auto& r) { ApplyRecord(sequence, r); }, record);
}

absl::Status JobState::CheckRecord(const AssignedRecord& record) const {
  ATOLL_RETURN_IF_ERROR(Check(record.assignment));
  if (record.assignment.job != job_) {
    return absl::InvalidArgumentError(absl::StrCat("assignment of job ", record.assignment.job));
  }
  if (record.assignment.definition.spec.outer.fragments < 1) {
    return absl::InvalidArgumentError(absl::StrCat("assignment of job ", job_, " in no fragments"));
  }
  const size_t slots = ListServerSlots(record.assignment.definition.spec.outer).size();
  const OuterSpec& now = assignment_.definition.spec.outer;
  const OuterSpec& next = record.assignment.definition.spec.outer;
  const bool others =
      assigned_ && (now.optimizer != next.optimizer || now.contributes_to != next.contributes_to);
  if (version_ != kNoVersion && (others || (slots_ != slots && !incoming_.empty()))) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_, " is held here for another outer optimizer than ",
                     next.optimizer, " or another job above than \"", next.contributes_to, "\""));
  }
  // Shards may still change while nothing was pushed.
  if (version_ == kNoVersion && staged_.empty()) return absl::OkStatus();
  // From then on they may go, and come if they have been received.
  for (const OwnedShard& shard : record.assignment.shards) {
    const auto held = shards_.find(shard.shard);
    if (held != shards_.end() && held->second.info == shard) continue;
    const auto incoming = incoming_.find(shard.shard);
    if (held != shards_.end() || incoming == incoming_.end() || incoming->second.info != shard ||
        !incoming->second.whole()) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", job_, " is held here without shard ", shard.shard,
                       ", which is assigned now and was not received"));
    }
  }
  return absl::OkStatus();
}

absl::Status JobState::CheckRecord(const FencedRecord& record) const {
  for (const IslandFence& fence : record.islands) {
    if (fence.island < 0 || fence.island >= kMaxIslands) {
      return absl::InvalidArgumentError(absl::StrCat("fence of island ", fence.island));
    }
  }
  return absl::OkStatus();
}

absl::Status JobState::CheckRecord(const PushedRecord& record) const {
  const auto shard = shards_.find(record.id.shard);
  if (record.id.job != job_ || shard == shards_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("push of shard ", record.id.shard, " of job ", record.id.job));
  }
  if (record.id.begin > kJobElementsMax || record.id.elements > kJobElementsMax) {
    return absl::InvalidArgumentError("push of more elements than there can be");
  }
  const ElementRange range = record.id.RangeIn(shard->second.info.elements);
  const int64_t block = PartBlock(record.encoding);
  if (range.begin < 0 || range.begin % block != 0 || range.size() <= 0 ||
      range.end > shard->second.info.elements ||
      (range.end % block != 0 && range.end != shard->second.info.elements)) {
    return absl::InvalidArgumentError(absl::StrCat("push of elements ", range.begin, " to ",
                                                   range.end, " of shard ", record.id.shard));
  }
  const int64_t bytes = EncodedBytes(record.encoding, range.size());
  if (static_cast<int64_t>(record.payload.bytes.size()) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shard ", record.id.shard, " has ", bytes,
                                                   " bytes so encoded, the push ",
                                                   record.payload.bytes.size()));
  }
  const auto staged = staged_.find({ToContributionId(record.id), record.id.shard});
  if (staged != staged_.end() && staged->second.encoding != record.encoding) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", record.id.shard, " is staged in another encoding"));
  }
  return absl::OkStatus();
}

absl::Status JobState::CheckRecord(const CommittedRecord& record) const {
  const std::string round = absl::StrCat("round ", record.version, " of job ", job_);
  if (ended_) return absl::FailedPreconditionError(absl::StrCat(round, ": the job has ended"));
  if (record.version != version_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(round, " cannot be applied to version ", version_));
  }
  const bool adopts = record.step.adopts != kNoVersion;
  const bool wrong_count = version_ == kNoVersion && !adopts
                               ? record.terms.size() != 1
                               : record.terms.size() > kMaxContributions;
  if (wrong_count) {
    return absl::InvalidArgumentError(
        absl::StrCat(round, " has ", record.terms.size(),
                     " contributions; version 0 takes 1, others up to ", kMaxContributions));
  }
  std::set<ContributionId> seen;
  for (const RoundTerm& term : record.terms) {
    if (!std::isfinite(static_cast<float>(term.weight)) || !seen.insert(term.contribution).second) {
      return absl::InvalidArgumentError(absl::StrCat(round, ": the term of ",
                                                     Name(term.contribution),
                                                     " comes twice or has no finite weight"));
    }
    for (const auto& [id, shard] : shards_) {
      if (!HasTurn(record.version, shard)) continue;
      if (FindStaged(term.contribution, id) == nullptr) {
        return absl::NotFoundError(absl::StrCat(round, ": the push of shard ", id, " by ",
                                                Name(term.contribution), " is missing"));
      }
    }
  }
  ATOLL_RETURN_IF_ERROR(CheckStep(record));
  return CheckExchange(record);
}

absl::Status JobState::CheckStep(const CommittedRecord& record) const {
  const auto bad = [&](auto... args) {
    return absl::InvalidArgumentError(
        absl::StrCat("round ", record.version, " of job ", job_, ": ", args...));
  };
  if (!std::isfinite(record.step.learning_rate)) return bad("its outer rate is not finite");
  std::set<int32_t> layers;
  for (const LayerStep& layer : record.step.layers) {
    const bool finite = std::all_of(layer.weights.begin(), layer.weights.end(), [](double weight) {
      return std::isfinite(static_cast<float>(weight));
    });
    if (!finite || layer.weights.size() != record.terms.size() ||
        !layers.insert(layer.layer).second) {
      return bad("the weights of layer ", layer.layer, " do not fit its terms");
    }
  }
  return absl::OkStatus();
}

absl::Status JobState::CheckRecord(const DroppedRecord&) const { return absl::OkStatus(); }

absl::Status JobState::CheckRecord(const EndedRecord&) const { return absl::OkStatus(); }

void JobState::ApplyRecord(LogSequence, const AssignedRecord& record) {
  epoch_ = std::max(epoch_, record.epoch);
  const OuterSpec& outer = record.assignment.definition.spec.outer;
  optimizer_ = MakeOuterOptimizer(outer);
  slots_ = ListServerSlots(outer).size();
  pull_encoding_ = outer.pull_encoding;
  if (!assigned_ || assignment_.shards != record.assignment.shards) {
    ChangeShards(record.assignment.shards);
    ledger_->SetShards(record.assignment.shards);
    parameter_bytes_ = ParameterBytes(record.assignment);
  }
  assignment_ = record.assignment;
  assigned_ = true;
}

void JobState::ApplyRecord(LogSequence, const FencedRecord& record) {
  ledger_->Fence(record.islands);
}

void JobState::ApplyRecord(LogSequence sequence, const PushedRecord& record) {
  // A replay applies commits in the order of the log, a running server when they are durable. A
  // push that came in between, of a contribution that the round dropped, is discarded in both.
  const ContributionId contribution = ToContributionId(record.id);
  if (ended_ || ledger_->IsDecided(contribution)) return;
  const auto [entry, added] = staged_.try_emplace({contribution, record.id.shard});
  StagedShard& staged = entry->second;
  if (!staged.pushes.insert(record.id).second) return;
  if (added) staged.first = sequence;
  staged.encoding = record.encoding;
  Put(record, shards_.at(record.id.shard).info.elements, staged);
  if (added) staged_bytes_ += static_cast<int64_t>(staged.payload.bytes.size());
  ledger_->AddPending(record.id);
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
    StepServed(next->second);
    ExchangeShard(next->second, record);
    elements -= tensors * next->second.info.elements;
  }
  if (next != shards_.end()) return false;
  stepped_.reset();
  version_ = record.version;
  newest_ = record;
  for (const RoundTerm& term : record.terms) Decide(term.contribution);
  for (const ContributionId& dropped : record.dropped) Decide(dropped);
  DropAllIncoming();  // they are of the version before
  if (record.step.adopts != kNoVersion) {
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
  ledger_->Close(absl::StrCat("job ", job_, " has ended"));
  while (!staged_.empty()) Decide(ContributionId(staged_.begin()->first.first));
  for (auto& [id, shard] : shards_) {
    // The islands' parameters are what was validated; nothing follows that needs the difference.
    if (serves_apart() && !shard.slots.empty()) shard.theta = shard.slots.back();
    shard.slots.clear();
    shard.step.reset();
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
  ledger_->Decide(contribution);
  for (auto staged = staged_.lower_bound({contribution, std::numeric_limits<ShardId>::min()});
       staged != staged_.end() && staged->first.first == contribution;
       staged = staged_.erase(staged)) {
    staged_bytes_ -= static_cast<int64_t>(staged->second.payload.bytes.size());
  }
}

bool JobState::HasTurn(Version version, const Shard& shard) const {
  return IsInTurn(version, shard.info.layer, assignment_.definition.spec.outer.fragments);
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

void JobState::StepShard(Shard& shard, const CommittedRecord& round) {
  const int64_t fragments = assignment_.definition.spec.outer.fragments;
  if (round.terms.empty()) return;  // no island has pushed the fragment, or shards are to be filled
  std::vector<WeightedDelta> deltas;
  for (const RoundTerm& term : round.terms) {
    const StagedShard& push = *FindStaged(term.contribution, shard.info.shard);
    deltas.push_back({{push.payload.bytes.data(), push.encoding, shard.info.elements},
                      static_cast<float>(term.weight)});
  }
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
  for (const LayerStep& layer : round.step.layers) {
    if (layer.layer != shard.info.layer) continue;
    for (size_t i = 0; i < deltas.size(); ++i) {
      deltas[i].weight = static_cast<float>(layer.weights[i]);
    }
  }
  const double rate = round.step.learning_rate;
  optimizer_->Step(state,
                   {deltas, rate != 0 ? rate : assignment_.outer_learning_rate,
                    assignment_.outer_momentum, CountFragmentTurns(round.version, fragments)},
                   *pool_);
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
  snapshot->fences = ledger_->Fences();
  snapshot->decided = ledger_->Decided();
  snapshot->staged = Staged();
  if (assigned_) snapshot->slots = ListServerSlots(assignment_.definition.spec.outer);
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

absl::StatusOr<bool> JobState::AddToGram(GramSum& sum, int64_t elements) const {
  if (sum.contributions.size() > kMaxContributions) {
    return absl::InvalidArgumentError(absl::StrCat("statistics of ", sum.contributions.size(),
                                                   " contributions; at most ", kMaxContributions,
                                                   " are possible"));
  }
  for (const ShardId id : sum.shards) {
    if (shards_.contains(id)) continue;
    return absl::NotFoundError(absl::StrCat("shard ", id, " is not here"));
  }
  auto next = sum.last ? shards_.upper_bound(*sum.last) : shards_.begin();
  for (; next != shards_.end() && elements > 0; ++next) {
    const auto& [id, shard] = *next;
    sum.last = id;
    const std::vector<ShardId>& only = sum.shards;
    if (!only.empty() && std::find(only.begin(), only.end(), id) == only.end()) continue;
    if (!HasTurn(sum.version, shard)) continue;
    if (absl::Status status = AddShard(id, shard, sum); !status.ok()) return status;
    const auto deltas = static_cast<int64_t>(sum.contributions.size() + 1);
    elements -= deltas * std::max<int64_t>(1, deltas / kMaxContributionsByLayer) *
                shard.info.elements;  // the products of many take longer than reading them
  }
  return next == shards_.end();
}

absl::Status JobState::AddShard(ShardId id, const Shard& shard, GramSum& sum) const {
  const size_t k = sum.contributions.size();
  const int reference = version_ == kNoVersion || !assigned_ || ended_
                            ? -1
                            : GetOuterOptimizer(assignment_.definition.spec.outer).reference;
  const size_t n = reference < 0 ? k : k + 1;
  std::vector<DeltaView> deltas(n);
  std::vector<double> gram(n * n);
  for (size_t i = 0; i < k; ++i) {
    const StagedShard* push = FindStaged(sum.contributions[i], id);
    if (push == nullptr) {
      return absl::NotFoundError(absl::StrCat("the push of shard ", id, " by ",
                                              Name(sum.contributions[i]), " is missing"));
    }
    deltas[i] = {push->payload.bytes.data(), push->encoding, shard.info.elements};
  }
  if (reference >= 0) {
    if (static_cast<size_t>(reference) >= shard.slots.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("shard ", id, " has no state of its outer optimizer any more"));
    }
    const auto& slot = shard.slots[static_cast<size_t>(reference)];
    deltas[k] = {slot->values().data(), Encoding::kFloat32, shard.info.elements};
  }
  GramMatrix(deltas, gram, *pool_);
  std::vector<double>& layer = sum.by_layer[HasStatisticsByLayer(k) ? shard.info.layer : 0];
  layer.resize(n * n);
  for (size_t i = 0; i < n * n && !HoldsStatistics(shard.info); ++i) layer[i] += gram[i];
  return absl::OkStatus();
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

std::shared_ptr<SharedTensor> JobState::Slot(ShardId shard, size_t slot) const {
  const auto found = shards_.find(shard);
  return found == shards_.end() || slot >= found->second.slots.size() ? nullptr
                                                                      : found->second.slots[slot];
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

JobReplay::JobReplay(JobId job, std::shared_ptr<const Snapshot> snapshot, ThreadPool* pool,
                     Version limit)
    : snapshot_(std::move(snapshot)), limit_(limit) {
  recovered_.job = job;
  if (snapshot_ == nullptr) {
    recovered_.state = std::make_unique<JobState>(std::move(job), pool);
    return;
  }
  auto state = JobState::FromSnapshot(*snapshot_, pool);
  if (!state.ok()) {
    status_ = state.status();
    return;
  }
  recovered_.state = *std::move(state);
  recovered_.next_sequence = snapshot_->replay_from;
  recovered_.snapshot_version = snapshot_->version;
  recovered_.snapshot_replay_from = snapshot_->replay_from;
  recovered_.snapshot_ended = snapshot_->ended;
}

absl::Status JobReplay::Add(LogSequence sequence, const LogRecord& record) {
  if (!status_.ok()) return status_;
  const bool covered = snapshot_ != nullptr && sequence > recovered_.next_sequence &&
                       sequence <= snapshot_->last_sequence + 1;
  if (covered) recovered_.next_sequence = sequence;
  if (sequence != recovered_.next_sequence) {
    return status_ = absl::DataLossError(absl::StrCat("record ", recovered_.next_sequence,
                                                      " is missing; ", sequence, " is next"));
  }
  ++recovered_.next_sequence;
  if (snapshot_ != nullptr && sequence <= snapshot_->last_sequence) {
    // The snapshot contains it, but for the bytes of what was staged or received.
    const auto* push = std::get_if<PushedRecord>(&record);
    const auto* received = std::get_if<ReceivedRecord>(&record);
    const bool staged = push != nullptr && std::binary_search(snapshot_->staged.begin(),
                                                              snapshot_->staged.end(), push->id);
    // Lists the records of a base that no round has adopted and later records do not replace.
    const bool base = received != nullptr && received->part == ReceivedPart::kAdopted;
    const bool incoming =
        received != nullptr &&
        (base ? received->version > snapshot_->exchange.base && recovered_.state->Check(record).ok()
              : received->version == snapshot_->version &&
                    !recovered_.state->HasShard(received->shard.shard));
    if (!staged && !incoming) return absl::OkStatus();
  }
  const auto* commit = std::get_if<CommittedRecord>(&record);
  beyond_ = beyond_ || (commit != nullptr && commit->version > limit_);
  if (beyond_) return absl::OkStatus();
  status_ = Annotate(recovered_.state->Check(record), absl::StrCat("record ", sequence));
  if (status_.ok()) recovered_.state->Apply(sequence, record);
  return status_;
}

absl::StatusOr<RecoveredJob> JobReplay::Finish() && {
  ATOLL_RETURN_IF_ERROR(status_);
  if (snapshot_ != nullptr && recovered_.next_sequence <= snapshot_->last_sequence) {
    return absl::DataLossError(absl::StrCat("the log ends with record ",
                                            recovered_.next_sequence - 1, ", the snapshot with ",
                                            snapshot_->last_sequence));
  }
  const std::vector<PushId> staged = recovered_.state->Staged();
  for (const PushId& id : snapshot_ == nullptr ? std::vector<PushId>() : snapshot_->staged) {
    if (std::binary_search(staged.begin(), staged.end(), id) ||
        !recovered_.state->HasShard(id.shard) ||
        recovered_.state->ledger()->IsDecided(ToContributionId(id))) {
      continue;
    }
    return absl::DataLossError(absl::StrCat("the push of shard ", id.shard, " by ",
                                            Name(ToContributionId(id)),
                                            " is not readable, which no round has used yet"));
  }
  for (const PushId& id : staged) recovered_.state->MarkDurable(id);
  return std::move(recovered_);
}

}  // namespace atl::ps
