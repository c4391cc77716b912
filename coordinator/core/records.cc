#include "coordinator/core/records.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace atl {
namespace {

struct KeyMaker {
  std::string operator()(const EpochRecord&) const { return "epoch"; }
  std::string operator()(const MemberRecord& r) const {
    return absl::StrCat(r.kind == MemberKind::kWorker ? "member/worker/" : "member/server/",
                        r.name);
  }
  std::string operator()(const JobRecord& r) const { return absl::StrCat("job/", r.job); }
  std::string operator()(const ProgressRecord& r) const { return absl::StrCat("progress/", r.job); }
  std::string operator()(const IslandRecord& r) const {
    return absl::StrFormat("island/%s/%06d", r.job, r.island);
  }
  std::string operator()(const ContributionRecord& r) const {
    const ContributionId& c = r.contribution;
    return absl::StrFormat("contribution/%s/%06d/%09d/%020d/%012d", r.job, c.island, c.generation,
                           c.incarnation, c.base_version + 1);
  }
  std::string operator()(const DecisionRecord& r) const {
    return absl::StrFormat("decision/%s/%012d", r.job, r.round);
  }
  std::string operator()(const PenaltyRecord& r) const {
    return absl::StrFormat("penalty/%s/%06d", r.job, r.island);
  }
  std::string operator()(const LedgerRecord& r) const {
    return absl::StrFormat("ledger/%s/%019d", r.job, r.range.begin);
  }
  std::string operator()(const PlanRecord& r) const {
    return absl::StrFormat("plan/%s/%06d", r.job, r.island);
  }
  std::string operator()(const LinkRecord& r) const {
    return absl::StrCat("link/", r.link.from, "/", r.link.to);
  }
  std::string operator()(const DeviceRecord& r) const {
    return absl::StrFormat("device/%s/%016x", r.device, r.model_digest);
  }
  std::string operator()(const RemovedRecord& r) const { return absl::StrCat("removed/", r.job); }
  std::string operator()(const EventRecord& r) const {
    return absl::StrFormat("event/%019d", r.sequence);
  }
};

}  // namespace

EpochRecord AfterLoss(EpochRecord known, int64_t unix_time_ms) {
  // More than the number of a coordinator's starts between a backup and its loss; the minute
  // distinguishes several restorations of one backup.
  constexpr int64_t kEpochsSkipped = 1 << 16;
  known.epoch = std::max(known.epoch + kEpochsSkipped, unix_time_ms / 60'000);
  known.sequence = std::max(known.sequence, known.epoch << 32);
  known.restored = true;
  return known;
}

std::string MakeRecordKey(const StoreRecord& record) { return std::visit(KeyMaker{}, record); }

}  // namespace atl
