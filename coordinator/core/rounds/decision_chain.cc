#include "coordinator/core/rounds/decision_chain.h"

#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/trust/pki.h"
#include "common/trust/signed_push.h"

namespace atl {
namespace {

// A number as its bits, so that two are the same only if they are equal.
std::string BitsText(double value) { return absl::StrFormat("%a", value); }

std::string NameText(const ContributionId& id) {
  return absl::StrCat(id.island, ".", id.generation, ".", id.incarnation, ".", id.base_version);
}

std::string StepText(const RoundStep& step) {
  std::string text =
      absl::StrCat("step ", BitsText(step.learning_rate), " ", BitsText(step.average_keep), " ",
                   step.averages_moments, " ", step.adopts, " ", step.contributes, "\n");
  for (const LayerStep& layer : step.layers) {
    absl::StrAppend(&text, "layer ", layer.layer);
    for (const double weight : layer.weights) absl::StrAppend(&text, " ", BitsText(weight));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string ParticipantText(const JobId& job, const DecisionParticipant& p) {
  std::string text = absl::StrCat("contribution ", NameText(p.contribution), "\nworker ",
                                  absl::CEscape(p.worker), "\nreason ", absl::CEscape(p.reason),
                                  "\ncounts ", p.accepted, " ", p.inner_steps, " ", p.tokens);
  for (const double value : {p.train_loss, p.norm, p.score, p.limit, p.clip, p.weight,
                             p.learning_rate, p.gradient_norm}) {
    absl::StrAppend(&text, " ", BitsText(value));
  }
  absl::StrAppend(&text, "\n");
  if (!p.signature) return text;
  return absl::StrCat(text, MakeSignedText(job, p.contribution, p.consumed, *p.signature), "by ",
                      absl::CEscape(p.signature->key), " ",
                      absl::BytesToHexString(p.signature->signature), "\n");
}

// The certificates by their keys; empty: the authority has signed one of them not.
using Signers = std::map<std::string, std::string>;

std::string SignatureProblem(const JobId& job, const DecisionParticipant& p,
                             const Signers& signers) {
  const std::string of =
      absl::StrCat("the contribution of island ", p.contribution.island, " (", p.worker, ")");
  const auto signer = signers.find(p.signature->key);
  if (signer == signers.end()) {
    return absl::StrCat(of, " is signed by a key that no certificate of the cluster has");
  }
  const std::string text = MakeSignedText(job, p.contribution, p.consumed, *p.signature);
  return HasSigned(signer->second, text, p.signature->signature)
             ? ""
             : absl::StrCat(of, " has a signature that does not fit what is said of it");
}

// Why the decision does not follow the one before; `before` is null for the first.
std::string LinkProblem(const DecisionRecord& decision, const DecisionRecord* before) {
  if (decision.digest.empty()) return "it has no digest, and the one before has";
  if (before != nullptr && decision.round != before->round + 1) {
    return absl::StrCat("it follows round ", before->round, ": rounds between are missing");
  }
  if (before != nullptr && decision.digest_before != before->digest) {
    return "it was made after another round than the one before it";
  }
  return DigestDecision(decision) == decision.digest ? "" : "it is not what was decided";
}

}  // namespace

std::string DigestDecision(const DecisionRecord& decision) {
  std::string text =
      absl::StrCat("atoll decision\nbefore ", absl::BytesToHexString(decision.digest_before),
                   "\njob ", decision.job, "\nround ", decision.round, "\nversion ",
                   decision.version, " after ", decision.previous, "\nopened by ",
                   decision.opened_by, "\nclosed because ", absl::CEscape(decision.closed_because),
                   "\ntokens ", decision.tokens, " ", decision.tokens_committed_after, "\n");
  for (const double value : {decision.norm, decision.clip_scale, decision.rho, decision.gain,
                             decision.cosine, decision.staleness}) {
    absl::StrAppend(&text, BitsText(value), " ");
  }
  absl::StrAppend(&text, "\n", StepText(decision.step), "dropped ",
                  absl::StrJoin(decision.dropped, " ",
                                [](std::string* out, const ContributionId& id) {
                                  absl::StrAppend(out, NameText(id));
                                }),
                  "\n");
  for (const DecisionParticipant& p : decision.participants) {
    absl::StrAppend(&text, ParticipantText(decision.job, p));
  }
  return Sha256(text);
}

CheckedDecisions CheckDecisions(const std::vector<DecisionRecord>& decisions,
                                const std::vector<std::string>& certificates,
                                const std::string& authority) {
  Signers signers;
  for (const std::string& certificate : certificates) {
    const absl::StatusOr<CertificateFacts> facts = ReadCertificate(certificate);
    if (facts.ok() && IsSignedBy(certificate, authority)) signers[facts->key_digest] = certificate;
  }
  CheckedDecisions checked;
  const DecisionRecord* before = nullptr;
  for (const DecisionRecord& decision : decisions) {
    if (before == nullptr && decision.digest.empty()) continue;  // of a build without them
    const auto fail = [&](std::string problem) {
      checked.bad_round = decision.round;
      checked.problem = std::move(problem);
      return checked;
    };
    if (std::string problem = LinkProblem(decision, before); !problem.empty()) {
      return fail(std::move(problem));
    }
    for (const DecisionParticipant& p : decision.participants) {
      ++(p.signature ? checked.signed_contributions : checked.unsigned_contributions);
      if (!p.signature || authority.empty()) continue;
      std::string problem = SignatureProblem(decision.job, p, signers);
      if (!problem.empty()) return fail(std::move(problem));
    }
    if (before == nullptr) checked.first_round = decision.round;
    checked.last_round = decision.round;
    checked.digest = decision.digest;
    ++checked.decisions;
    before = &decision;
  }
  return checked;
}

}  // namespace atl
