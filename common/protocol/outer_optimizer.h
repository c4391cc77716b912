// The outer optimizers (of the DiLoCo outer step) and merges that a job may choose: their names,
// state slots and parameters.
// One table of each, which job files, the coordinator and parameter servers share. What an
// optimizer does to a shard is in paramserver/core/outer_optimizer.h, what a merge makes of a
// round's pseudo-gradients in coordinator/core/rounds/merge.h.

#ifndef ATOLL_COMMON_PROTOCOL_OUTER_OPTIMIZER_H_
#define ATOLL_COMMON_PROTOCOL_OUTER_OPTIMIZER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/protocol/job_spec.h"

namespace atl {

// The most slots that ListServerSlots returns; the format of received shards has room for so many.
inline constexpr int kMaxOuterSlots = 6;

struct OuterParameter {
  std::string name;
  double default_value = 0;
  double low = 0, high = 0;  // both included
};

struct OuterOptimizerInfo {
  std::string name;
  std::vector<std::string> slots;  // fp32 numbers beside each parameter, zero at version 0
  int reference = -1;              // the slot that a pseudo-gradient is compared with; -1: none
  bool single_pushes = false;      // each push makes a round
  std::vector<OuterParameter> parameters;
};

const std::vector<OuterOptimizerInfo>& OuterOptimizers();
const std::vector<std::string>& OuterMerges();

// A job's choice, as far as it makes one.
struct OuterChoice {
  std::optional<std::string> optimizer;
  std::optional<double> learning_rate, momentum;
};
// Fills in what is left out: averaging, which has won at equal tokens in every run that was
// measured (docs/decisions/outer-optimizers.md); Nesterov where a momentum is given.
OuterChoice WithDefaults(OuterChoice choice);

// REQUIRES, of all below: ValidateOuterChoice(spec).
const OuterOptimizerInfo& GetOuterOptimizer(const OuterSpec& spec);
bool HasSinglePushRounds(const OuterSpec& spec);
// Returns whether the merge has coefficients of its own for each layer.
bool MergesByLayer(const OuterSpec& spec);
// Lists the slots that a server keeps beside each parameter: the optimizer's slots, kAverageSlot,
// kRatioSlot and kSecondSlot where moments are averaged, and last, where pulls are quantised,
// kServedSlot, or in the job of a site's servers kBaseSlot and kContributedSlot.
std::vector<std::string> ListServerSlots(const JobSpec& spec);
// The moving average (EMA) of the parameters. Servers keep it of the global model's versions, which
// is what an export has: an average that owners keep of their island's parameters would be one of
// several, cost device memory, and be lost with the island. A round in which the islands have made
// n steps on the mean keeps decay^n of it, as if the parameters had been the new version's in all
// of them: runs of other round lengths and numbers of islands average over the same tokens. It
// stays when the job ends; of a shard that was lost it begins anew.
inline constexpr char kAverageSlot[] = "average";
bool KeepsAverage(const JobSpec& spec);
// Its index; REQUIRES: KeepsAverage(spec).
size_t AverageSlotIndex(const JobSpec& spec);
// Index of kRatioSlot; kSecondSlot follows. REQUIRES: moments are averaged.
size_t RatioSlotIndex(const JobSpec& spec);
// The parameters as islands hold them, which differ from the server's by the rounding error of
// quantised pulls so far (docs/decisions/quantised-pulls.md).
inline constexpr char kServedSlot[] = "served";
// The newest average of islands' moments: m / sqrt(v), and v; 0 before there was one.
inline constexpr char kRatioSlot[] = "moment ratio";
inline constexpr char kSecondSlot[] = "second moment";
// Slots where the job contributes to another one (OuterSpec.contributes_to): the parameters of that
// one which it adopted, and its own ones when it made its newest contribution.
inline constexpr char kBaseSlot[] = "base";
inline constexpr char kContributedSlot[] = "contributed";
// Bytes of one parameter and its slots on a server.
int64_t ServerBytesPerElement(const JobSpec& spec);
// Returns the bytes that a round may need beside these: one staged pseudo-gradient, and in the job
// of a site's servers the version of the job above that is fetched.
int64_t ServerPeakBytesPerElement(const JobSpec& spec);
// REQUIRES: the optimizer has the parameter.
double OuterParameterValue(const OuterSpec& spec, absl::string_view name);

// Checks that optimizer, merge and parameters exist and go together.
absl::Status ValidateOuterChoice(const OuterSpec& spec);
// Checks that optimizer and parameters of a site's rounds exist and go together.
absl::Status ValidateSiteChoice(const SiteServersSpec& spec);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_OUTER_OPTIMIZER_H_
