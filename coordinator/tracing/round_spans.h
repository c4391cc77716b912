// Outer rounds as traces: a root from the first push of a round until it is committed, and below it
// each island's push until the decision, and the commit. Ids follow from job and round, so that a
// round that is exported again after a restart is the same trace. Pure.

#ifndef ATOLL_COORDINATOR_TRACING_ROUND_SPANS_H_
#define ATOLL_COORDINATOR_TRACING_ROUND_SPANS_H_

#include <deque>
#include <map>
#include <vector>

#include "coordinator/core/records.h"
#include "coordinator/tracing/span.h"

namespace atl {

class RoundSpans {
 public:
  // After each step of the core: what it stored. Spans of the rounds that have ended by it.
  std::vector<Span> OnStored(int64_t unix_ms, const std::vector<StoreWrite>& writes);

 private:
  struct Round {
    Version version = kNoVersion;
    std::vector<Span> spans;  // the root first; the last one is the commit
  };
  struct Job {
    std::map<ContributionId, int64_t> granted_ms;  // not decided yet
    std::deque<Round> deciding;                    // not committed yet
    int64_t last_round = -1;
  };

  void OnDecision(int64_t unix_ms, const DecisionRecord& decision, std::vector<Span>* ended);
  void OnVersion(int64_t unix_ms, Version version, Job& job, std::vector<Span>* ended);

  std::map<JobId, Job> jobs_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRACING_ROUND_SPANS_H_
