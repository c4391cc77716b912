// Measurements of workers and links since the coordinator's start, and the measuring of links
// before an island's first plan.
//
// A plan or grouping that is wanted waits until every line between its workers has been measured
// lately, both ways: that of two sites by one pair of workers, at one site each worker's to another
// one, and where sites are not known yet every pair's. One worker after the other times messages
// another one, and where sites are not known yet every pair's. One worker after the other times
// messages (MeasureLinks), so that measurements do not disturb each other. A worker that does not
// answer in time is busy: for a while its links are not measured, and plans are made without them.
// Workers of a running island measure only their lines to a joining worker, in parallel to
// training, which does not wait for it. The island's own steps, all-reduces and messages
// (WorkerHeartbeat) correct older measurements, and replace those that could not be made
// (corrections.h). These results are stored and survive a restart of the coordinator, with their
// age; workers that reconnect repeat their measurements (LinksMeasured of request 0), which count
// as old. A worker that could not be reached is probed in parallel to training, and gets into plans
// again once it answers. The links determine the sites of workers (sites.h). Pairs of workers at
// the same two sites use one line: when the messages of one pair show that it has changed, it has
// for the others, too.
//
// Pure: time is an argument; the same calls give the same answers. Not thread-safe.

#ifndef ATOLL_COORDINATOR_MEASUREMENTS_PROFILE_BOOK_H_
#define ATOLL_COORDINATOR_MEASUREMENTS_PROFILE_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/control.h"
#include "common/protocol/device_profile.h"
#include "common/time.h"
#include "coordinator/core/records.h"
#include "coordinator/measurements/corrections.h"
#include "coordinator/measurements/sites.h"
#include "coordinator/planning/request.h"

namespace atl {

struct ProfileBookOptions {
  Duration link_fresh = std::chrono::minutes(30);  // older ones are measured again
  Duration turn_limit = std::chrono::seconds(20);  // one worker's measuring
  // A pair that could not be measured though there is a connection is requested again after so
  // long.
  Duration unmeasured_retry = std::chrono::minutes(2);
  size_t max_profiles = 65'536;
  // What is stored of links and devices, the newest, and how old it may be.
  size_t max_stored = 4096;
  Duration stored_limit = std::chrono::hours(24);
};

// One direction between two workers.
struct LinkReport {
  LinkReport() = default;
  LinkReport(LinkProfile measured, Instant at, bool live)
      : link(measured), measured(std::move(measured)), at(at), live(live) {}

  LinkProfile link;      // as it is now
  LinkProfile measured;  // before running islands corrected it
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
  // A worker that the coordinator knew before this book began: its site, and its newest
  // incarnation.
  void Remember(const NodeId& worker, Incarnation incarnation, const Standing& standing);
  // What an earlier book had stored, in any order, after the workers; what is too old is forgotten.
  void Remember(Instant now, Instant at, const LinkRecord& record);
  void Remember(Instant now, Instant at, const DeviceRecord& record);
  // `request` as PlanIsland takes it, but for profiles and links, which are filled in here. `busy`:
  // its workers run an island and cannot measure, but for their lines to those that have `joined`
  // it and have no part in it yet, which are timed beside training.
  void Want(Instant now, PlanKey key, PlanRequest request, bool busy,
            const std::set<NodeId>& joined = {});

  struct Message {
    NodeId worker;
    Incarnation incarnation = 0;
    MeasureLinks message;
  };
  struct Work {
    std::vector<Message> send;
    std::vector<std::pair<PlanKey, PlanRequest>> plan;  // ready for PlanIsland
    std::vector<KnowledgeChange> changes;               // since the last call
    // LinkRecords and DeviceRecords for the store, without their times: they are of now.
    std::vector<StoreWrite> persist;
    std::map<NodeId, MeasuredSite> sites;  // of workers whose site is another one now
    // All of them, where any has changed.
    std::map<std::pair<std::string, std::string>, double> site_rates;
    Instant deadline = kNever;  // call again by then
  };
  // What is to be done now. Call it after OnMessage and Want, and at the deadline.
  Work Advance(Instant now);

  // The newest profile of each device for this model, by name.
  std::vector<DeviceProfile> Devices(uint64_t model_digest) const;
  // Ordered by from, to.
  std::vector<LinkReport> Links() const;
  // Of all members whose site is known, declared ones too.
  std::map<NodeId, MeasuredSite> Sites() const { return FindSites(standing_, Profiles()); }
  // Further findings for the user: devices that are slower than measured, pairs without a link.
  std::vector<std::string> Troubles(Instant now) const;

  // What plans wait for that are to be made: whose turn it is to measure, and who had one.
  std::vector<std::string> Turns() const;

  // Profiles and links of the request's members, as far as they are known.
  void FillIn(PlanRequest& request) const;

 private:
  using Pair = std::pair<NodeId, NodeId>;
  static constexpr size_t kMaxLinks = size_t{1} << 20;
  struct Waiting {
    PlanKey key;
    PlanRequest request;
    std::set<NodeId> joined;  // not empty: only their lines are measured, beside training
    std::set<NodeId> had_turn;
    NodeId measurer;         // empty: no turn
    std::vector<NodeId> to;  // that it measures
    int64_t turn = 0;        // MeasureLinks::request of the turn
    Instant turn_ends{};
    Instant send_again{};
  };

  void OnHello(const NodeId& worker, Incarnation incarnation, const WorkerHello& hello);
  void OnMeasured(Instant now, const NodeId& worker, const LinksMeasured& measured);
  void OnBoundary(Instant now, const BoundaryState& boundary);
  static bool Usable(const LinkProfile& link);
  void OnRoundTrip(Instant now, const Pair& pair, double seconds);
  double RoundTripOf(Instant now, const Pair& pair) const;  // lately; 0: not known
  void OnSums(Instant now, const GroupSums& sums);
  std::string LineBetween(const NodeId& a, const NodeId& b) const;
  void Store(Instant now, StoreRecord record);
  void Unstore(const StoreRecord& record);
  void StoreLink(Instant now, const Pair& pair) { Store(now, LinkRecord{links_.at(pair).link}); }
  void StoreDevice(Instant now, const std::string& device, uint64_t model_digest);
  void UnstoreDevices();
  void CorrectLine(Instant now, const LinkProfile& was, const LinkProfile& is);
  std::string SiteOf(const NodeId& worker) const;  // empty: not known
  std::map<std::pair<NodeId, NodeId>, LinkProfile> Profiles() const;
  void UpdateSites(Work& work);
  bool Fresh(Instant now, const Pair& pair) const;
  bool NextTurn(Instant now, Waiting& waiting) const;
  std::string LineOf(const Pair& pair) const;
  void NoteLine(const Pair& measured);
  void NoteLines();  // a worker's site has changed
  // As it was measured, else as its line was.
  std::optional<LinkReport> LinkOf(const Pair& pair) const;
  LinkReport* FindLink(const Pair& pair);  // likewise, to correct it; null: nothing is known
  static bool IsWanted(const Waiting& waiting, const Pair& pair);
  static std::vector<IslandMember> TakingPart(const Waiting& waiting);
  void Busy(Instant now, const NodeId& worker, const Waiting& among, const std::string& reason);
  void Probe(Instant now, Work& work);
  bool InTurn(const PlanRequest& request) const;

  const ProfileBookOptions options_;
  std::map<std::pair<std::string, uint64_t>, DeviceProfile> profiles_;  // by device, model
  std::map<Pair, LinkReport> links_;
  std::map<std::string, Pair> lines_;  // by LineOf; of links_, the newest
  struct Unmeasured {
    Instant again_at{};
    std::string reason;
  };
  std::map<Pair, Unmeasured> unmeasured_;
  std::map<NodeId, Standing> standing_;
  std::map<NodeId, IslandMember> said_hello_;
  std::map<std::pair<std::string, std::string>, double> site_rates_;  // the newest that went out
  bool links_changed_ = false;                                        // since sites were found
  DeviceCorrections device_corrections_;
  LinkCorrections link_corrections_;
  SumCorrections sum_corrections_;
  struct Trip {
    double seconds = 0;
    Instant at{};
  };
  std::map<Pair, Trip> round_trips_;
  UnreachablePairs unreachable_;
  std::vector<KnowledgeChange> changes_;
  struct Stored {
    Instant at{};
    StoreRecord record;  // its key counts
  };
  std::map<std::string, Stored> stored_;  // by key
  std::vector<StoreWrite> persist_;
  std::vector<Waiting> waiting_;  // in order of arrival
  int64_t last_turn_ = 0;
  int64_t last_probe_ = 0;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MEASUREMENTS_PROFILE_BOOK_H_
