// Outer rounds as traces: a root from the first push of a round until it is committed, and below it
// each island's push until the decision, and the commit. Ids follow from job and round, so that a
// round that is exported again after a restart is the same trace. Pure.

#ifndef ATOLL_COORDINATOR_TRACING_ROUND_SPANS_H_
#define ATOLL_COORDINATOR_TRACING_ROUND_SPANS_H_

#include <deque>
#include <map>
#include <vector>

#include "coordinator/history/round_log.h"
#include "coordinator/tracing/span.h"

namespace atl {

class RoundSpans {
 public:
  // Spans of the rounds that have ended by it.
  std::vector<Span> On(const JobEvent& event);

 private:
  struct Round {
    Version version = kNoVersion;
    std::vector<Span> spans;  // the root first; the last one is the commit
  };
  std::vector<Span> OnDecision(int64_t unix_ms, const RoundDecided& decided);

  std::map<JobId, std::deque<Round>> deciding_;  // not committed yet
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRACING_ROUND_SPANS_H_
