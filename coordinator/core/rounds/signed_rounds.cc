#include "coordinator/core/rounds/signed_rounds.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/trust/pki.h"
#include "common/trust/signed_push.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/rounds/decision_chain.h"
#include "coordinator/core/rounds/expert_tokens.h"

namespace atl::coord {
namespace {

constexpr size_t kSignatureBytesMax = 1024;

// Checks that the parts are all of what is pushed, once and in order.
absl::Status CheckParts(const Job& job, const PushRequest& message) {
  auto part = message.parts.begin();
  for (const ShardDescriptor& shard : job.record.shards) {
    if (!IsPushed(job, message.contribution, shard, message.expert_tokens)) continue;
    int64_t next = 0;
    for (; part != message.parts.end() && part->shard == shard.shard; ++part) {
      if (part->begin != next || part->elements <= 0 || part->elements > shard.elements - next ||
          part->digest.size() != kDigestBytes) {
        break;
      }
      next += part->elements;
    }
    if (next == shard.elements) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("its digests are not of all of shard ", shard.shard, ", in order"));
  }
  return part == message.parts.end()
             ? absl::OkStatus()
             : absl::InvalidArgumentError("it has digests of what is not pushed");
}

}  // namespace

absl::Status CheckSigned(const Job& job, const Worker& worker, const PushRequest& message) {
  if (!message.parts.empty()) ATOLL_RETURN_IF_ERROR(CheckParts(job, message));
  if (worker.certificate.empty()) return absl::OkStatus();
  if (!message.signature || message.parts.empty()) {
    return absl::InvalidArgumentError("it is not signed, and its worker has a certificate");
  }
  const PushSignature& signature = *message.signature;
  if (signature.digest != DigestPush(message.parts, message.expert_tokens)) {
    return absl::InvalidArgumentError("it is signed for another pseudo-gradient");
  }
  const std::string text =
      MakeSignedText(message.job, message.contribution, message.consumed, signature);
  return signature.signature.size() <= kSignatureBytesMax &&
                 HasSigned(worker.certificate, text, signature.signature)
             ? absl::OkStatus()
             : absl::InvalidArgumentError("its signature does not fit what it says");
}

void KeepSigned(Job& job, const Worker& worker, const PushRequest& message) {
  ContributionRecord& record = job.rounds.EditContribution(message.contribution);
  record.worker = worker.record.name;
  record.site = GetWorkerSite(worker);
  if (message.parts.empty()) return;
  record.parts = message.parts;
  const absl::StatusOr<CertificateFacts> shown = ReadCertificate(worker.certificate);
  if (!shown.ok() || !message.signature) return;
  record.signature = message.signature;
  record.signature->key = shown->key_digest;
  const std::vector<Signer>& signers = job.record.signers;
  const bool known = std::any_of(signers.begin(), signers.end(),
                                 [&](const Signer& s) { return s.key == shown->key_digest; });
  if (known) return;
  std::set<std::string> named;
  const auto name = [&](const auto& signed_one) {
    if (signed_one.signature) named.insert(signed_one.signature->key);
  };
  for (const auto& [id, contribution] : job.rounds.contributions) name(contribution);
  for (const auto& [round, decision] : job.rounds.decisions) {
    std::for_each(decision.participants.begin(), decision.participants.end(), name);
  }
  std::vector<Signer>& kept = job.EditRecord().signers;
  std::erase_if(kept, [&](const Signer& s) { return !named.contains(s.key); });
  kept.push_back({shown->key_digest, worker.certificate});
}

std::vector<ContributionParts> SelectPartsOn(const Job& job, const NodeId& server) {
  std::vector<ContributionParts> selected;
  for (const ContributionId& id : job.rounds.collecting->contributions) {
    ContributionParts parts{id, {}};
    for (const PartDigest& part : job.rounds.contributions.at(id).parts) {
      if (GetActiveServer(job.shard(part.shard)) == server) parts.parts.push_back(part);
    }
    if (!parts.parts.empty()) selected.push_back(std::move(parts));
  }
  return selected;
}

void SealDecisions(Job& job) {
  for (const int64_t round : job.rounds.dirty.decisions) {
    const auto found = job.rounds.decisions.find(round);
    if (found == job.rounds.decisions.end() || !found->second.digest.empty()) continue;
    DecisionRecord& decision = found->second;
    decision.digest_before = job.progress.decisions_digest;
    decision.digest = DigestDecision(decision);
    job.EditProgress().decisions_digest = decision.digest;
  }
}

}  // namespace atl::coord
