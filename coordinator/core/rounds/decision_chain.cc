#include "coordinator/core/rounds/decision_chain.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
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

struct ChainSigner {
  Identity identity;
  std::string certificate;
};
using ChainSigners = std::map<std::string, ChainSigner>;  // by their keys; the authority's alone

ChainSigners ReadSigners(const std::vector<std::string>& certificates,
                         const std::string& authority) {
  ChainSigners signers;
  for (const std::string& certificate : certificates) {
    const absl::StatusOr<CertificateFacts> facts = ReadCertificate(certificate);
    if (facts.ok() && facts->identity.ok() && IsSignedBy(certificate, authority)) {
      signers[facts->key_digest] = {*facts->identity, certificate};
    }
  }
  return signers;
}

std::string SignatureProblem(const JobId& job, const DecisionParticipant& p,
                             const ChainSigners& signers) {
  const std::string of =
      absl::StrCat("the contribution of island ", p.contribution.island, " (", p.worker, ")");
  const auto signer = signers.find(p.signature->key);
  if (signer == signers.end()) {
    return absl::StrCat(of, " is signed by a key that no certificate of the cluster has");
  }
  const Identity& identity = signer->second.identity;
  if (identity.role != Role::kWorker || !CoversName(identity, p.worker)) {
    return absl::StrCat(of, " is signed by ", ToText(identity));
  }
  const std::string text = MakeSignedText(job, p.contribution, p.consumed, *p.signature);
  return HasSigned(signer->second.certificate, text, p.signature->signature)
             ? ""
             : absl::StrCat(of, " has a signature that does not fit what is said of it");
}

bool HasToBeSigned(const DecisionRecord& decision, const DecisionParticipant& p) {
  return !decision.digest_before.empty() && !absl::StartsWith(p.worker, kBranchPrefix);
}

bool HasSignature(const DecisionRecord& decision) {
  return std::any_of(decision.participants.begin(), decision.participants.end(),
                     [](const DecisionParticipant& p) { return p.signature.has_value(); });
}

// Counts the decision's contributions, and checks them where there are signers. `must`: those that
// workers make have to be signed.
std::string ContributionsProblem(const DecisionRecord& decision, const ChainSigners* signers,
                                 bool must, CheckedDecisions* checked) {
  for (const DecisionParticipant& p : decision.participants) {
    ++(p.signature ? checked->signed_contributions : checked->unsigned_contributions);
    if (signers == nullptr || (!p.signature && !(must && HasToBeSigned(decision, p)))) continue;
    std::string problem = p.signature
                              ? SignatureProblem(decision.job, p, *signers)
                              : absl::StrCat("the contribution of island ", p.contribution.island,
                                             " (", p.worker, ") is not signed");
    if (!problem.empty()) return problem;
  }
  return "";
}

// Why the decision does not follow the one before; `before` is null for the first.
std::string LinkProblem(const DecisionRecord& decision, const DecisionRecord* before) {
  if (decision.digest.empty()) return "it has no digest, and the one before has";
  if (before != nullptr && !decision.digest_before.empty()) {
    if (decision.round != before->round + 1) {
      return absl::StrCat("it follows round ", before->round, ": rounds between are missing");
    }
    if (decision.digest_before != before->digest) {
      return "it was made after another round than the one before it";
    }
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
                                const std::string& newest,
                                const std::vector<std::string>& certificates,
                                const std::string& authority) {
  const ChainSigners signers = ReadSigners(certificates, authority);
  const bool checks_signatures = !authority.empty();
  // Who removes all signatures must not pass either.
  const bool any_signed = std::any_of(decisions.begin(), decisions.end(), HasSignature);
  bool must = !any_signed;
  CheckedDecisions checked;
  const DecisionRecord* before = nullptr;
  const auto fail = [&](int64_t round, std::string problem) {
    checked.bad_round = round;
    checked.problem = std::move(problem);
    return checked;
  };
  for (const DecisionRecord& decision : decisions) {
    if (before == nullptr && decision.digest.empty()) {
      ++checked.unchained;
      continue;
    }
    std::string problem = LinkProblem(decision, before);
    if (problem.empty()) {
      problem =
          ContributionsProblem(decision, checks_signatures ? &signers : nullptr, must, &checked);
    }
    if (!problem.empty()) return fail(decision.round, std::move(problem));
    must |= HasSignature(decision);
    if (before == nullptr) checked.first_round = decision.round;
    if (decision.digest_before.empty()) checked.begins_at = decision.round;
    checked.last_round = decision.round;
    checked.digest = decision.digest;
    ++checked.decisions;
    before = &decision;
  }
  if (newest.empty() || newest == checked.digest) return checked;
  return fail(before == nullptr ? 0 : before->round + 1,
              "the job's newest decision is not among those that are kept, or has no digest");
}

}  // namespace atl
