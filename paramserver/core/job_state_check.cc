#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/ascii.h"
#include "common/protocol/experts.h"
#include "common/protocol/fragments.h"
#include "common/protocol/limits.h"
#include "common/protocol/outer_optimizer.h"
#include "common/status.h"
#include "paramserver/core/job_state.h"

namespace atl::ps {
namespace {

constexpr int64_t kJobElementsMax = int64_t{1} << 40;  // of all its shards here

// It names a folder on the disk.
bool IsJobName(const JobId& job) {
  return !job.empty() && job.size() <= 200 && job.front() != '.' &&
         std::all_of(job.begin(), job.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

}  // namespace

std::string ContributionText(const ContributionId& id) {
  return absl::StrCat("island ", id.island, " (generation ", id.generation, ", incarnation ",
                      id.incarnation, ", base version ", id.base_version, ")");
}

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

absl::Status JobState::CheckRecord(const AssignedRecord& record) const {
  ATOLL_RETURN_IF_ERROR(Check(record.assignment));
  if (record.assignment.job != job_) {
    return absl::InvalidArgumentError(absl::StrCat("assignment of job ", record.assignment.job));
  }
  const Fragments fragments = FragmentsFrom(record.assignment.definition.spec.outer);
  if (fragments.layers < 1 || fragments.experts < 1) {
    return absl::InvalidArgumentError(absl::StrCat("assignment of job ", job_, " in no fragments"));
  }
  const size_t slots = ListServerSlots(record.assignment.definition.spec).size();
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
  if (HasMoments(record.encoding) && !averages_moments()) {
    return absl::InvalidArgumentError("push of moments, of which the job averages none");
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
                                                     ContributionText(term.contribution),
                                                     " comes twice or has no finite weight"));
    }
    for (const auto& [id, shard] : shards_) {
      if (!HasTurn(record.version, shard) || !IsSeen(term.expert_tokens, shard.info)) continue;
      if (FindStaged(term.contribution, id) == nullptr) {
        return absl::NotFoundError(absl::StrCat(round, ": the push of shard ", id, " by ",
                                                ContributionText(term.contribution),
                                                " is missing"));
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
  if (!(record.step.average_keep >= 0 && record.step.average_keep <= 1)) {
    return bad("it keeps ", record.step.average_keep, " of the moving average");
  }
  if (record.step.averages_moments && (!averages_moments() || record.version == 0)) {
    return bad("it averages moments, of which there are none");
  }
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

}  // namespace atl::ps
