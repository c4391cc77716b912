// Carries out MeasureLinks, on a thread of its own: meets the other workers over the peer link
// and, if this worker is the one that measures, times messages to each of them; or only probes
// them. In parallel to training no worker is met: the measured worker takes samples on connections
// of their own.

#ifndef ATOLL_WORKER_PROFILER_LINK_MEASURER_H_
#define ATOLL_WORKER_PROFILER_LINK_MEASURER_H_

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "common/net/peer/peer_link.h"
#include "common/protocol/control.h"
#include "worker/profiler/link_profiler.h"
#include "worker/work_queue.h"

namespace atl::worker {

struct LinkMeasurerOptions {
  // PeerLink::SetPeers, or a refusal because the link is in use by an island.
  std::function<absl::Status(const PeerFence&, const std::vector<IslandMember>&)> meet;
  std::function<void(LinksMeasured)> post;  // from the measurer's thread
  // Reports what it measures now ("measures the link to w3 (2 of 5)"); empty: it is done. From its
  // thread.
  std::function<void(const std::string&)> measuring = [](const std::string&) {};
  Duration meet_timeout = std::chrono::seconds(8);
  Duration probe_timeout = std::chrono::seconds(6);
  // A worker with a request to take samples takes them for so long, a few rounds.
  Duration temporary_for = std::chrono::seconds(60);
  LinkProfileOptions profile;
};

// Its end waits for what is being measured: seconds at most.
class LinkMeasurer {
 public:
  // `link` outlives it.
  LinkMeasurer(PeerLink* link, LinkMeasurerOptions options);
  // The newest request replaces one that has not begun; one that repeats the last is skipped. A
  // probe replaces only a probe, and waits for what is measured.
  void Measure(MeasureLinks request);

 private:
  void MeasureNext();
  void Do(const MeasureLinks& request, LinksMeasured& answer);
  void MeasureDuringSteps(const MeasureLinks& request, LinksMeasured& answer);
  void Probe(const MeasureLinks& request, LinksMeasured& answer);
  void Sort(LinkFailure failure, LinksMeasured& answer) const;

  PeerLink* const link_;
  const LinkMeasurerOptions options_;
  std::mutex mutex_;
  std::optional<MeasureLinks> next_;        // guarded by mutex_
  std::optional<MeasureLinks> next_probe_;  // guarded by mutex_
  int64_t newest_ = 0;                      // guarded by mutex_: request taken or waiting
  WorkQueue work_;                          // last: it uses the others
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PROFILER_LINK_MEASURER_H_
