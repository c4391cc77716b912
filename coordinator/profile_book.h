// What was measured of workers and links, as long as the coordinator lives; and the measuring of
// links before an island's first plan.
//
// A plan or grouping that is wanted waits until every pair of its workers has been measured lately,
// both ways: one worker after the other times messages to the others (MeasureLinks), so that
// measurements do not disturb each other; who does not answer in time is busy: for a while nobody
// is asked to measure its links, and plans are made without them. Workers
// of an island that runs are not asked, so measuring never holds up training: what their own steps
// and messages show (WorkerHeartbeat) corrects older measurements, and makes up for those that were
// never made: who joins a running island is planned with on assumptions, until three windows of
// messages say what its links are (corrections.h). The book begins empty; workers that connect
// again say again what they have measured (LinksMeasured of request 0), which counts as old. Who
// could not be reached is probed beside training, and gets into plans again once it answers. From
// the links it is known where workers stand (sites.h). Pairs of workers at the same two sites use
// one line: when the messages of one pair show that it has changed, it has for the others, too.
//
// Pure: time is an argument; the same calls give the same answers. Not thread-safe.

#ifndef ATOLL_COORDINATOR_PROFILE_BOOK_H_
#define ATOLL_COORDINATOR_PROFILE_BOOK_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/control.h"
#include "common/protocol/device_profile.h"
#include "common/time.h"
#include "coordinator/corrections.h"
#include "coordinator/planning.h"
#include "coordinator/sites.h"

namespace atl {

struct ProfileBookOptions {
  Duration link_fresh = std::chrono::minutes(30);  // older ones are measured again
  Duration turn_limit = std::chrono::seconds(20);  // one worker's measuring
  // A pair that could not be measured though there is a connection is asked for again after so
  // long.
  Duration unmeasured_retry = std::chrono::minutes(2);
  size_t max_profiles = 65'536;
};

// One direction between two workers.
struct LinkReport {
  LinkProfile link;
  Instant at{};
  bool live = false;  // from the messages of a running island
};

class ProfileBook {
 public:
  explicit ProfileBook(ProfileBookOptions options = {}) : options_(options) {}

  // Everything that workers say; what is not about measurements is skipped, and so is what a worker
  // says of others' devices and links.
  void OnMessage(Instant now, const FromWorker& from);

  // Which plan a request is for; a later one for the same island replaces an earlier one. Island
  // kGrouping: not for a plan, but to know who shares an island.
  struct PlanKey {
    JobId job;
    IslandId island = 0;
    int64_t request = 0;
  };
  static constexpr IslandId kGrouping = -1;
  // A worker that the coordinator knew before this book began: where it stood.
  void Remember(const NodeId& worker, const Standing& standing) { standing_[worker] = standing; }
  // `request` as PlanIsland takes it, but for profiles and links, which are filled in here. `busy`:
  // its workers run an island and cannot measure.
  void Want(Instant now, PlanKey key, PlanRequest request, bool busy);

  struct Message {
    NodeId worker;
    Incarnation incarnation = 0;
    MeasureLinks message;
  };
  struct Work {
    std::vector<Message> send;
    std::vector<std::pair<PlanKey, PlanRequest>> plan;  // ready for PlanIsland
    std::vector<KnowledgeChange> changes;               // since the last call
    std::map<NodeId, MeasuredSite> sites;               // of workers whose site is another one now
    Instant deadline = kNever;                          // call again by then
  };
  // What is to be done now. Call it after OnMessage and Want, and at the deadline.
  Work Advance(Instant now);

  // The newest profile of each device for this model, by name.
  std::vector<DeviceProfile> Devices(uint64_t model_digest) const;
  // Ordered by from, to.
  std::vector<LinkReport> Links() const;
  // Of everybody whose site is known, declared ones too.
  std::map<NodeId, MeasuredSite> Sites() const { return FindSites(standing_, Profiles()); }
  // What people should know beside: devices that are slower than measured, pairs without a link.
  std::vector<std::string> Troubles(Instant now) const;

  // Profiles and links of the request's members, as far as they are known.
  void FillIn(PlanRequest& request) const;

 private:
  using Pair = std::pair<NodeId, NodeId>;
  struct Waiting {
    PlanKey key;
    PlanRequest request;
    std::set<NodeId> had_turn;
    NodeId measurer;         // empty: nobody's turn
    std::vector<NodeId> to;  // that it measures
    int64_t turn = 0;        // MeasureLinks::request of the turn
    Instant turn_ends{};
    Instant send_again{};
  };

  void OnHello(const NodeId& worker, Incarnation incarnation, const WorkerHello& hello);
  void OnMeasured(Instant now, const NodeId& worker, const LinksMeasured& measured);
  void OnBoundary(Instant now, const BoundaryState& boundary);
  void CorrectLine(Instant now, const LinkProfile& was, const LinkProfile& is);
  std::string SiteOf(const NodeId& worker) const;  // empty: not known
  std::map<std::pair<NodeId, NodeId>, LinkProfile> Profiles() const;
  void UpdateSites(Work& work);
  bool Fresh(Instant now, const Pair& pair) const;
  bool NextTurn(Instant now, Waiting& waiting) const;
  void Busy(Instant now, const NodeId& worker, const PlanRequest& among, const std::string& reason);
  void Probe(Instant now, Work& work);
  bool InTurn(const std::vector<IslandMember>& members) const;

  const ProfileBookOptions options_;
  std::map<std::pair<std::string, uint64_t>, DeviceProfile> profiles_;  // by device, model
  std::map<Pair, LinkReport> links_;
  struct Unmeasured {
    Instant again_at{};
    std::string reason;
  };
  std::map<Pair, Unmeasured> unmeasured_;
  std::map<NodeId, Standing> standing_;
  std::map<NodeId, IslandMember> said_hello_;
  bool links_changed_ = false;  // since sites were found
  DeviceCorrections device_corrections_;
  LinkCorrections link_corrections_;
  UnreachablePairs unreachable_;
  std::vector<KnowledgeChange> changes_;
  std::vector<Waiting> waiting_;  // in order of arrival
  int64_t last_turn_ = 0;
  int64_t last_probe_ = 0;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PROFILE_BOOK_H_
