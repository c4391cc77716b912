// Measurements of workers and links since the coordinator's start, and the measuring of links
// before an island's first plan.
//
// A plan or grouping that is wanted waits until every link between its workers has been measured
// lately, in both directions: an inter-site link by one pair of workers, at one site each worker's
// link to another one (profile_registry_schedule.cc says what is measured while sites are not
// known). Workers time messages (MeasureLinks) in turns. Turns that share a worker, or a site whose
// inter-site link they use, do not overlap, so that measurements do not disturb each other; all
// others run at the same time. A worker that does not answer in time is busy: for a while its links
// are not measured, and plans are made without them. Workers of an island that runs measure their
// links to a worker that has joined it, alone, during training, which does not wait. What their own
// steps, all-reduces and messages show (WorkerHeartbeat) corrects older measurements, and makes up
// for those that could not be made (corrections.h). What was found this way is stored, and known
// again after a restart of the coordinator, with its age; measurements are reported again by
// workers that reconnect (LinksMeasured of request 0), which counts as old. A worker that could not
// be reached is probed during training, and gets into plans again once it answers. The sites of
// workers are derived from the links (sites.h). Pairs of workers at the same two sites share one
// link: when the messages of one pair show that it has changed, it has for the other pairs, too.
//
// Pure: time is an argument; the same calls give the same answers. Not thread-safe.

#ifndef ATOLL_COORDINATOR_MEASUREMENTS_PROFILE_REGISTRY_H_
#define ATOLL_COORDINATOR_MEASUREMENTS_PROFILE_REGISTRY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
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

class ProfileRegistry {
 public:
  // `max_stored`: records of links and devices that are stored at most, the newest first.
  explicit ProfileRegistry(size_t max_stored = 4096) : max_stored_(max_stored) {}

  // Every message of a worker; what is not about measurements is skipped, and so is what a worker
  // reports of others' devices and links.
  void OnMessage(Instant now, const FromWorker& from);

  // Names the plan that a request is for; a later one for the same island replaces an earlier one.
  // Island kGrouping: not for a plan, but to find which workers share an island.
  struct PlanKey {
    JobId job;
    IslandId island = 0;
    int64_t request = 0;
  };
  static constexpr IslandId kGrouping = -1;
  // A worker that the coordinator knew before this registry was created: its site, and its newest
  // incarnation.
  void Remember(const NodeId& worker, Incarnation incarnation, const Standing& standing);
  // Take in what an earlier registry had stored, in any order, after the workers; records that are
  // too old are dropped.
  void Remember(Instant now, Instant at, const LinkRecord& record);
  void Remember(Instant now, Instant at, const DeviceRecord& record);
  // `request` as PlanIsland takes it, but for profiles and links, which are filled in here. `busy`:
  // its workers run an island and cannot measure, but for their links to those that have `joined`
  // it and have no part in it yet, which are timed during training.
  void Want(PlanKey key, PlanRequest request, bool busy, const std::set<NodeId>& joined = {});

  struct Message {
    NodeId worker;
    Incarnation incarnation = 0;
    MeasureLinks message;
  };
  struct Work {
    std::vector<Message> send;
    std::vector<std::pair<PlanKey, PlanRequest>> plan;  // ready for PlanIsland
    std::vector<ProfileChanged> changes;                // since the last call
    // LinkRecords and DeviceRecords for the store, without their times: they are of now.
    std::vector<StoreWrite> persist;
    std::map<NodeId, MeasuredSite> sites;  // of workers whose site is another one now
    // All of them, where any has changed.
    std::map<std::pair<std::string, std::string>, double> site_rates;
    Instant deadline = kNever;  // call again by then
  };
  // Returns what is to be done now. Call it after OnMessage and Want, and at the deadline.
  Work Advance(Instant now);

  // The newest profile of each device for this model, by name.
  std::vector<DeviceProfile> Devices(uint64_t model_digest) const;
  // Ordered by from, to.
  std::vector<LinkReport> Links() const;
  // Returns the sites of all members whose site is known, declared ones too.
  std::map<NodeId, MeasuredSite> Sites() const { return FindSites(standing_, Profiles()); }
  // Further findings for the user: devices that are slower than measured, pairs without a link.
  std::vector<std::string> ListTroubles(Instant now) const;

  // Describes what requested plans wait for: which workers measure now, and which have measured.
  std::vector<std::string> DescribeTurns() const;

  // Profiles and links of the request's members, as far as they are known.
  void FillIn(PlanRequest& request) const;

 private:
  using Pair = std::pair<NodeId, NodeId>;
  static constexpr size_t kMaxLinks = size_t{1} << 20;
  static constexpr size_t kMaxProfiles = 65'536;
  static constexpr Duration kLinkFresh = std::chrono::minutes(30);  // older ones are measured again
  // One worker's timing of its links to some others.
  struct Turn {
    NodeId measurer;
    std::vector<NodeId> to;
    std::vector<IslandMember> members;   // all that take part: both of the above
    std::set<std::string> shared_links;  // by MakeSharedLinkKey
    std::set<std::string> sites;         // whose inter-site links it uses
    int64_t number = 0;                  // MeasureLinks::request
    Instant ends{};
    Instant send_again{};
  };
  struct Waiting {
    PlanKey key;
    PlanRequest request;
    std::unordered_set<NodeId> workers;  // of the request
    bool changed = true;                 // turns of it may begin, or it may be ready
    std::set<NodeId> joined;  // not empty: only their links are measured, during training
    bool measures = true;     // false: it is planned with what is known
    // Turns that measured something, so that nothing is tried without end.
    std::set<std::pair<NodeId, std::string>> requested;  // by measurer, shared link
    std::map<std::string, int> tries;                    // of a shared link
    std::set<NodeId> had_turn;
    std::vector<Turn> turns;  // that go on
  };
  // A link that a worker is to time.
  struct Wanted {
    size_t to = 0;  // index of the request's member
    std::string shared_link;
    std::set<std::string> sites;  // two, if it is an inter-site link
  };
  // Workers and links that are in use by turns that go on.
  struct InUse {
    std::unordered_set<NodeId> workers;
    std::set<std::string> sites;
  };
  // Sites of the request's members, by their indices in order.
  struct MembersBySite {
    std::map<std::string, std::vector<size_t>> sites;
    std::vector<size_t> unknown;
  };

  void OnHello(const NodeId& worker, Incarnation incarnation, const WorkerHello& hello);
  void OnMeasured(Instant now, const NodeId& worker, const LinksMeasured& measured);
  void OnStageLink(Instant now, const StageLinkState& stage_link);
  static bool Usable(const LinkProfile& link);
  void OnRoundTrip(Instant now, const Pair& pair, double seconds);
  double GetRoundTripSeconds(Instant now, const Pair& pair) const;  // lately; 0: not known
  void OnAllReduceTimes(Instant now, const AllReduceTimes& all_reduce_times);
  std::string MakeUndirectedLinkKey(const NodeId& a, const NodeId& b) const;
  void Store(Instant now, StoreRecord record);
  void Unstore(const StoreRecord& record);
  void StoreLink(Instant now, const Pair& pair) { Store(now, LinkRecord{links_.at(pair).link}); }
  void StoreDevice(Instant now, const std::string& device, uint64_t model_digest);
  void UnstoreDevices();
  void CorrectSharedLink(Instant now, const LinkProfile& was, const LinkProfile& is);
  std::string FindWorkerSite(const NodeId& worker) const;  // empty: not known
  std::map<std::pair<NodeId, NodeId>, LinkProfile> Profiles() const;
  void UpdateSites(Instant now, Work& work);
  bool Fresh(Instant now, const Pair& pair) const;
  bool IsSharedLinkFresh(Instant now, const std::string& shared_link) const;
  void Release(const Turn& turn);
  void EndTurn(const Turn& turn);
  void EndLateTurns(Instant now);
  void CheckAllTurns();
  bool BeginTurns(Instant now, Waiting& waiting, Work& work);
  bool BeginHubTurn(Instant now, Waiting& waiting, const MembersBySite& members_by_site);
  bool BeginSharedLinkTurns(Instant now, Waiting& waiting, const MembersBySite& members_by_site);
  void BeginTurn(Instant now, Waiting& waiting, size_t measurer, const std::vector<Wanted>& wanted);
  std::vector<size_t> NearHub(const PlanRequest& request, size_t hub,
                              const std::vector<size_t>& others) const;
  std::optional<Wanted> ChooseOnSharedLink(Instant now, const Waiting& waiting, size_t measurer,
                                           const std::vector<size_t>& others,
                                           const Wanted& wanted_link, bool& blocked) const;
  std::vector<Wanted> ListWantedMeasurements(Instant now, const Waiting& waiting,
                                             const MembersBySite& members_by_site, size_t measurer,
                                             bool& blocked) const;
  MembersBySite GroupMembersBySite(const PlanRequest& request) const;
  void SendTurns(Instant now, Waiting& waiting, Work& work);
  std::string MakeSharedLinkKey(const Pair& pair) const;
  void UpdateSharedLink(const Pair& measured);
  void UpdateSharedLinks();  // a worker's site has changed
  // Returns the report of the pair as it was measured, else as its shared link was.
  std::optional<LinkReport> FindLinkReport(const Pair& pair) const;
  LinkReport* FindLink(const Pair& pair);  // likewise, to correct it; null: nothing is known
  static bool IsWanted(const Waiting& waiting, const Pair& pair);
  void Busy(Instant now, const NodeId& worker, const Waiting& among, const std::string& reason);
  void Probe(Instant now, Work& work);

  const size_t max_stored_;
  std::map<std::pair<std::string, uint64_t>, DeviceProfile> profiles_;  // by device, model
  std::map<Pair, LinkReport> links_;
  std::map<std::string, Pair> shared_links_;  // by MakeSharedLinkKey; of links_, the newest
  struct Unmeasured {
    Instant again_at{};
    std::string reason;
  };
  std::map<Pair, Unmeasured> unmeasured_;
  std::map<NodeId, Standing> standing_;
  std::map<NodeId, IslandMember> said_hello_;
  std::map<NodeId, int64_t> moved_;  // of these: the last turn before it had another endpoint
  std::map<std::pair<std::string, std::string>, double> site_rates_;  // the newest that went out
  bool links_changed_ = false;                                        // since sites were found
  bool all_declared_ = false;  // the sites of all of standing_, when they were found
  Instant sites_at_{};         // when they are found again at the earliest, if they are declared
  DeviceCorrections device_corrections_;
  LinkCorrections link_corrections_;
  AllReduceCorrections all_reduce_corrections_;
  struct Trip {
    double seconds = 0;
    Instant at{};
  };
  std::map<Pair, Trip> round_trips_;
  UnreachablePairs unreachable_;
  std::vector<ProfileChanged> changes_;
  struct Stored {
    Instant at{};
    StoreRecord record;  // its key counts
  };
  std::map<std::string, Stored> stored_;  // by key
  std::vector<StoreWrite> persist_;
  std::vector<Waiting> waiting_;  // in order of arrival
  bool turns_changed_ = false;    // of some of waiting_
  InUse in_use_;
  Instant turns_at_ = kNever;  // not after the first that ends or is sent again
  int64_t last_turn_ = 0;
  int64_t last_probe_ = 0;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MEASUREMENTS_PROFILE_REGISTRY_H_
