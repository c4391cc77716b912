// A user's request: one training job, and its limits. proto/job.proto has the fields, with their
// meaning and defaults.

#ifndef ATOLL_COMMON_PROTOCOL_JOB_SPEC_H_
#define ATOLL_COMMON_PROTOCOL_JOB_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/protocol/round_length.h"
#include "proto/job.plain.h"

namespace atl {

constexpr bool IsImages(DataFormat format) {
  return format == DataFormat::kCifar10 || format == DataFormat::kCifar100 ||
         format == DataFormat::kIdx || format == DataFormat::kImageFolder;
}

// Returns the value as a job file spells it.
inline const char* DocumentsName(Documents documents) {
  return documents == Documents::kText    ? "text"
         : documents == Documents::kMask  ? "mask"
         : documents == Documents::kPairs ? "pairs"
                                          : "continue";
}
// Returns whether documents are packed into sequences.
inline bool IsPacked(const DataSpec& data) { return data.documents != Documents::kText; }

inline constexpr int64_t kImageSideMax = 4096;  // pixels

inline constexpr int kValidationSetsMax = 16;
inline constexpr int kDataSourcesMax = 64;
inline constexpr int kEvaluationsMax = 16;
inline constexpr int kBatchStagesMax = 64;
inline constexpr int kDataSitesMax = 256;

inline constexpr int kAdapterTargetsMax = 64;
inline constexpr int64_t kAdapterRankMax = 1024;
inline constexpr int64_t kPairsMax = 4096;  // of a step, with objective.kind = "dpo"
inline constexpr double kBetaMax = 1e3;
inline constexpr double kAdapterAlphaMax = 1e6;

inline constexpr int64_t kFragmentsMax = 4096;
inline constexpr int64_t kNormStatisticsMax = kFragmentsMax * kLengthClasses;

// The most tokens to train on: as many sequences as an axis of positions has.
inline constexpr int64_t kTrainTokensMax = int64_t{1} << 48;

// Returns the folder of the reference of a job of pairs that trains a whole model; empty: it has
// none.
const std::string& GetReferencePath(const JobSpec& spec);

// The job that model.initial_job names.
struct InitialJob {
  std::string job;               // empty: none
  Version version = kNoVersion;  // kNoVersion: its newest
};
// Reads JOB or JOB@VERSION. INVALID_ARGUMENT: it is neither.
absl::StatusOr<InitialJob> ParseInitialJob(const std::string& text);

// Checks that the numbers with which all daemons count are within their limits: of a specification
// that comes from another daemon or from the disk, of any job, a site's too. Part of Validate.
absl::Status ValidateCounts(const JobSpec& spec);

inline constexpr int kExcludedMax = 1024;     // workers and devices
inline constexpr int kLayoutSitesMax = 256;   // of layout.sites
inline constexpr int kLinkLimitsMax = 65536;  // all pairs of as many sites

// Why a worker with so many devices takes no part in the job: layout.exclude names it or all of its
// devices, or layout.sites does not name its site. Empty: it may take part.
std::string WhyNoPart(const LayoutSpec& layout, const std::string& worker, const std::string& site,
                      size_t devices);
// Returns how many bytes of a device's memory a job may use, at least 1 where the memory is known.
int64_t BytesForJob(const LayoutSpec& layout, int64_t memory_bytes);

// Checks that so many heads can be split by ratios into whole ones, at least one each. The error
// names the field. REQUIRES: ratios of 1 or more.
absl::Status CheckTensorSplitRatios(const std::vector<int64_t>& ratios, int64_t heads);

// Every limit of every field of a job that a user submits. The message names the field as the job
// file spells it ("outer.momentum = 1.5: must be at least 0 and below 1").
absl::Status Validate(const JobSpec& spec);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_JOB_SPEC_H_
