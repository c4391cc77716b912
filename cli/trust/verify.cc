#include "cli/trust/verify.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/text/output.h"
#include "common/plural.h"
#include "common/status.h"
#include "common/trust/identity_folder.h"
#include "coordinator/core/rounds/decision_chain.h"
#include "coordinator/store_backup.h"
#include "coordinator/wire.h"

namespace atl::cli {
namespace {

struct KeptDecisions {
  std::string job;
  std::vector<DecisionRecord> decisions;  // oldest first
  std::vector<std::string> certificates;
  std::string newest_digest;
};

absl::StatusOr<KeptDecisions> ReadFromCoordinator(const Global& global, const std::string& job) {
  ATOLL_ASSIGN_OR_RETURN(const auto client, Client::Dial(global.tls, global.coordinator));
  KeptDecisions kept;
  ATOLL_ASSIGN_OR_RETURN(kept.job, client->FindJob(job));
  v1::DecisionsRequest request;
  request.set_job(kept.job);
  std::set<std::string> certificates;
  for (;;) {
    ATOLL_ASSIGN_OR_RETURN(const v1::DecisionsReply page, client->Decisions(request));
    for (const std::string& bytes : page.records()) {
      ATOLL_ASSIGN_OR_RETURN(StoreRecord record, DecodeRecord(bytes));
      auto* decision = std::get_if<DecisionRecord>(&record);
      if (decision == nullptr || decision->round <= request.after_round()) {
        return absl::DataLossError("the coordinator's answer is no list of decisions");
      }
      request.set_after_round(decision->round);
      kept.decisions.push_back(std::move(*decision));
    }
    certificates.insert(page.certificates().begin(), page.certificates().end());
    if (!page.records().empty()) continue;
    kept.certificates.assign(certificates.begin(), certificates.end());
    kept.newest_digest = page.newest_digest();
    return kept;
  }
}

absl::StatusOr<KeptDecisions> ReadFromBackup(const VerifyFlags& flags) {
  std::string folder = (std::filesystem::temp_directory_path() / "atoll_verify_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, folder);
  const absl::Cleanup remove = [&] {
    std::error_code error;
    std::filesystem::remove_all(folder, error);
  };
  ATOLL_ASSIGN_OR_RETURN(const StoreContents contents, ReadBackup(flags.backup, folder + "/store"));
  std::vector<std::string> jobs;
  KeptDecisions kept;
  for (const StoreRecord& record : contents.records) {
    const auto* job = std::get_if<JobRecord>(&record);
    if (job == nullptr || !absl::StartsWith(job->job, flags.job)) continue;
    if (jobs.empty() || job->job == flags.job) {
      kept.job = job->job;
      kept.certificates.clear();
      for (const Signer& signer : job->signers) kept.certificates.push_back(signer.certificate);
    }
    jobs.push_back(job->job);
  }
  if (jobs.empty() || (jobs.size() > 1 && kept.job != flags.job)) {
    return absl::NotFoundError(absl::StrCat("it has ", CountText(std::ssize(jobs), "job"),
                                            " whose id begins with ", flags.job));
  }
  for (const StoreRecord& record : contents.records) {
    const auto* decision = std::get_if<DecisionRecord>(&record);
    if (decision != nullptr && decision->job == kept.job) kept.decisions.push_back(*decision);
    const auto* progress = std::get_if<ProgressRecord>(&record);
    if (progress != nullptr && progress->job == kept.job) {
      kept.newest_digest = progress->decisions_digest;
    }
  }
  std::sort(kept.decisions.begin(), kept.decisions.end(),
            [](const auto& a, const auto& b) { return a.round < b.round; });
  return kept;
}

std::string SignaturesText(const CheckedDecisions& checked, bool authority) {
  const int64_t all = checked.signed_contributions + checked.unsigned_contributions;
  if (checked.signed_contributions == 0) {
    return "no contribution is signed: workers without certificates do not sign";
  }
  return absl::StrCat(
      checked.signed_contributions, " of ", CountText(all, "contribution"), " signed",
      authority ? ", and each signature fits" : "; signatures are not checked without --tls-ca");
}

absl::Status Verify(const Global& global, const VerifyFlags& flags) {
  std::string authority;
  if (!global.tls.ca_path.empty()) {
    ATOLL_ASSIGN_OR_RETURN(authority, ReadPemFile(global.tls.ca_path));
  }
  absl::StatusOr<KeptDecisions> kept =
      flags.backup.empty() ? ReadFromCoordinator(global, flags.job) : ReadFromBackup(flags);
  if (!kept.ok() && !flags.backup.empty()) {
    return Annotate(kept.status(), absl::StrCat("--backup ", flags.backup));
  }
  ATOLL_RETURN_IF_ERROR(kept.status());
  const CheckedDecisions checked =
      CheckDecisions(kept->decisions, kept->newest_digest, kept->certificates, authority);
  if (!checked.problem.empty()) {
    return absl::DataLossError(
        absl::StrCat(kept->job, ": round ", checked.bad_round, " does not fit: ", checked.problem));
  }
  const std::string digest = absl::BytesToHexString(checked.digest);
  if (global.structured) {
    std::cout << DocumentLine(
        {{"job", kept->job},
         {"decisions", checked.decisions},
         {"unchained", checked.unchained},
         {"begins_at", checked.begins_at},
         {"first_round", checked.first_round},
         {"last_round", checked.last_round},
         {"signed_contributions", checked.signed_contributions},
         {"unsigned_contributions", checked.unsigned_contributions},
         {"signatures_checked", authority.empty() ? 0 : checked.signed_contributions},
         {"digest", digest}});
  } else if (checked.decisions == 0) {
    std::cout << kept->job << ": no round is decided yet\n";
  } else {
    std::cout << kept->job << ": rounds " << checked.first_round << " to " << checked.last_round
              << " follow each other; " << SignaturesText(checked, !authority.empty())
              << "\nnewest digest: " << digest << "\n";
    if (checked.unchained > 0) {
      std::cout << CountText(checked.unchained, "round") << " before have no digest: "
                << "an earlier build decided them, or they were changed\n";
    }
    if (checked.begins_at > checked.first_round || checked.begins_at > 1) {
      std::cout << "round " << checked.begins_at << " begins a chain: the job was taken over from "
                << "its parameter servers, and it is not shown to follow earlier ones\n";
    }
  }
  return absl::OkStatus();
}

}  // namespace

int VerifyCommand(const Global& global, const VerifyFlags& flags) {
  const absl::Status status = Verify(global, flags);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace atl::cli
