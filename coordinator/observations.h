// Data that the coordinator keeps for users and monitors, besides the core's own state: curves of
// jobs, counters of metrics, islands that make no progress. Used by the loop's thread alone.

#ifndef ATOLL_COORDINATOR_OBSERVATIONS_H_
#define ATOLL_COORDINATOR_OBSERVATIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/history/history.h"
#include "coordinator/history/history_files.h"
#include "coordinator/history/round_log.h"
#include "coordinator/monitoring/progress_watch.h"
#include "coordinator/monitoring/round_counters.h"
#include "coordinator/tracing/otlp.h"
#include "coordinator/tracing/round_spans.h"

namespace atl {

class Observations {
 public:
  // Curves are kept below `state_dir`. `records`: what the core starts from. Rounds are exported as
  // traces where there are settings for that.
  Observations(const std::string& state_dir, const std::vector<StoreRecord>& records,
               const std::optional<OtlpSettings>& otlp);
  ~Observations();

  // After each step of the core.
  void OnStep(Instant now, int64_t unix_ms, const CoordinatorEvent& event,
              const std::vector<StoreWrite>& writes);
  // Between steps; when to call again at the latest.
  Instant Advance(Instant now) { return files_.Save(now, &history_); }

  const History& history() const { return history_; }
  const RoundCounters& counters() const { return counters_; }
  const ProgressWatch& progress() const { return progress_; }

 private:
  RoundLog log_;
  History history_;
  HistoryFiles files_;
  RoundCounters counters_;
  ProgressWatch progress_;
  RoundSpans spans_;
  std::optional<OtlpExporter> exporter_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_OBSERVATIONS_H_
