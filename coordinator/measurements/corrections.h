// Corrections of earlier measurements by an island's own steps: devices and links whose speed has
// changed, and pairs of workers without a connection. The input of straggler mitigation: plans are
// made with the corrected times.
//
// The rules, for a device's time as for a link's:
// - Workers report in windows of steps or messages. A window counts once (its number is larger than
//   those before), halved into the mean of those before.
// - What is in force changes only when three windows in a row were more than 25% off it. So noise,
//   and what passes within seconds, changes nothing; and what has come back is measured likewise.
// - Of a link the quickest message of a window counts, and only where it is half a millisecond off:
//   others may have waited for a busy machine. Messages of two sizes separate bandwidth and
//   latency. Of one size alone, half of the quickest round trip without a message is the latency,
//   the rest bytes. Where no round trip is known, what is slower is taken to be the bandwidth, but
//   for messages below 32 KiB that are mostly latency; what is faster, whichever is the larger
//   part.
// - Where a link was never measured, the quickest of the largest messages of three windows counts
//   as its measurement; without a round trip a tenth of its time as latency.
// - All-reduces of gradients show the slowest link in the ring of their members, in both
// directions.
//   A window is complete when all members have one, and the least of their times counts: the others
//   waited for a straggler. The time of all-reduces in the first three windows under a plan is
//   usual for them, up to twice what the link should take, times the groups that share it: time
//   beyond the link's part is not caused by the link. Later windows show that a link has become
//   slower, and that it has recovered, but never that it is faster than measured: stragglers do not
//   wait for all of an all-reduce.
// - What is slower and has no work any more could never show that it has recovered: it is forgotten
//   after 5 minutes, then 10, 20, 40, and tried again.
// - A pair without a connection counts as unusable until a probe from the one to the other has been
//   answered, or until it is measured: the first probe comes after a minute, further ones every
//   minute. A pair that fails again although a probe was answered is probed after 2 minutes, then
//   4, ... up to 32. One without a report of its probes for 20 minutes is forgotten.
//
// Pure: time is an argument. Not thread-safe.

#ifndef ATOLL_COORDINATOR_MEASUREMENTS_CORRECTIONS_H_
#define ATOLL_COORDINATOR_MEASUREMENTS_CORRECTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/control.h"
#include "common/protocol/device_profile.h"
#include "common/time.h"
#include "coordinator/core/core.h"

namespace atl {

// Windows in a row that change what is known.
inline constexpr int kCorrectingWindows = 3;

// "w3/0 is 1.9 times slower than measured"; `before` and `now`: times what was measured, which
// within 10% is as measured again.
std::string DescribeChange(const std::string& what, double before, double now);
// Returns how many times the larger is the smaller.
double HowFar(double a, double b);
// Returns how many bytes take as long by the link's bandwidth alone (simulator/size_curve.h).
double EffectiveBytes(const LinkProfile& link, double bytes);
// Gives the link another latency and bandwidth; times by size follow them.
void SetLaw(int64_t latency_ns, double bytes_per_s, LinkProfile& link);
// Messages of so many bytes take `factor` times what the link says: changes it accordingly.
// `round_trip_s`: without a message; 0: not known.
void Attribute(double bytes, double factor, double round_trip_s, LinkProfile& link);

// One number that is seen in windows: a factor on what was measured.
class Drift {
 public:
  // Returns whether the factor in force has changed.
  bool Add(double factor);
  double factor() const { return factor_; }
  bool off() const { return off_ > 0; }  // the newest window
  void Restore(double factor) { factor_ = seen_ = factor; }
  void Reset() { *this = Drift(); }

 private:
  double factor_ = 1;  // in force
  double seen_ = 0;    // mean; 0: nothing yet
  int off_ = 0;        // windows in a row
};

// Returns how long the layers of this work take by the profile; 0: it does not say.
double ExpectedSeconds(const DeviceProfile& profile, const DeviceWork& work);

class DeviceCorrections {
 public:
  // `profile`: of the work's device and model, as it was measured.
  void OnWork(Instant now, const DeviceProfile& profile, const DeviceWork& work,
              std::vector<ProfileChanged>& changes);
  // Forgets what has not been seen for long; returns when to call again.
  Instant Advance(Instant now, std::vector<ProfileChanged>& changes);
  void Forget(const NodeId& worker);  // it is another process
  // Restores what an earlier process of the coordinator had found, as if it were seen now.
  void Restore(Instant now, const std::string& device, uint64_t model_digest, double factor);

  double Factor(const std::string& device, uint64_t model_digest) const;
  DeviceProfile Corrected(const DeviceProfile& profile) const;
  std::vector<std::string> Texts() const;  // of those that are in force

 private:
  struct Entry {
    Drift drift;
    int64_t window = 0;
    Instant at{};
    Duration patience = std::chrono::minutes(5);
  };
  std::map<std::pair<std::string, uint64_t>, Entry> entries_;  // by device, model
};

class LinkCorrections {
 public:
  // Corrects `link`, in place, if it has changed for good; each of several corrections is stated
  // against `measured`. Returns whether the message agreed with the link as it is now.
  // `round_trip_s`: lately, without a message; 0: not known.
  bool OnStageLink(const StageLinkState& stage_link, double round_trip_s,
                   const LinkProfile& measured, LinkProfile& link,
                   std::vector<ProfileChanged>& changes);
  // Returns for a link that was never measured what three windows of its messages show. Nothing:
  // not yet.
  std::optional<LinkProfile> OnUnmeasured(const StageLinkState& stage_link, double round_trip_s,
                                          std::vector<ProfileChanged>& changes);
  // The link was measured anew.
  void Restart(const NodeId& from, const NodeId& to);
  void Forget(const NodeId& worker);  // it is another process

 private:
  struct Entry {
    int64_t window = 0;
    Drift drift;
    std::map<int64_t, double> seconds;  // by bytes, of the windows in a row that are off
    double round_trip_s = 0;            // the least of these windows; 0: not known
    // Windows of a link that was not measured, and their largest and quickest message.
    int unmeasured = 0;
    int64_t largest_bytes = 0;
    double quickest_s = 0;
  };
  static void Correct(const Entry& entry, int64_t bytes, double factor, LinkProfile& link);
  Entry* NewWindow(const StageLinkState& stage_link);

  std::map<std::pair<std::string, std::string>, Entry> entries_;  // by devices
};

class AllReduceCorrections {
 public:
  // Null: not known.
  using LinkLookup = std::function<const LinkProfile*(const NodeId& from, const NodeId& to)>;
  // Returns the shared link that the pair's messages go over, the same in both directions and for
  // all pairs on it.
  using SharedLinkLookup = std::function<std::string(const NodeId&, const NodeId&)>;

  // Messages of so many bytes over this link take `factor` times what is known of it, for good:
  // `now` times what was measured, after `before` times.
  struct Change {
    NodeId from, to;
    double bytes = 0;
    double factor = 1;
    double before = 1;
    double now = 1;
  };
  std::optional<Change> OnAllReduceTimes(const AllReduceTimes& all_reduce_times,
                                         const LinkLookup& link_lookup,
                                         const SharedLinkLookup& shared_link_lookup);
  // The link is known by other means now.
  void Restart(const NodeId& from, const NodeId& to, const std::string& shared_link);
  void Forget(const NodeId& worker);  // it is another process

 private:
  struct SlowestLink {
    NodeId from, to;
    double bytes = 0;    // of each message in the ring
    double seconds = 0;  // that it should take
  };
  struct Seen {
    int64_t window = 0;
    int64_t bytes = 0;
    double seconds = 0;
    bool fresh = false;
  };
  struct Group {
    int64_t plan = 0;
    std::map<std::string, Seen> seen;  // by device
    std::string shared_link;           // the slowest
    int learned = 0;                   // windows that `baseline_ratio` is from
    double baseline_ratio = 0;         // times what the slowest link should take
    Drift drift;                       // on that
  };
  static std::optional<SlowestLink> FindSlowestLink(const AllReduceTimes& all_reduce_times,
                                                    const LinkLookup& link_lookup);
  static double LeastOfAll(const AllReduceTimes& all_reduce_times, Group& group);
  int Sharing(int64_t plan, const std::string& shared_link) const;

  std::map<std::vector<std::string>, Group> groups_;  // by devices
  std::map<std::string, double> slower_;              // by shared link: times what was measured
};

class UnreachablePairs {
 public:
  // `live`: a plan needs it now.
  void Failed(Instant now, const NodeId& from, const LinkFailure& failure, bool live,
              std::vector<ProfileChanged>& changes);
  void Passed(const NodeId& from, const NodeId& to) { pairs_.erase({from, to}); }
  // Takes in the result of a probe; `trouble` empty: it was answered.
  void Probed(Instant now, const NodeId& from, const NodeId& to, const std::string& trouble,
              std::vector<ProfileChanged>& changes);
  void Forget(const NodeId& worker);
  // Whom each worker is to probe now; returns when to call again.
  Instant Advance(Instant now, std::map<NodeId, std::vector<NodeId>>& probes);

  bool Blocked(const NodeId& from, const NodeId& to) const;
  // Return the reasons of the pairs that are blocked now, by pair.
  std::map<std::pair<NodeId, NodeId>, std::string> Reasons() const;
  std::vector<std::string> Texts(Instant now) const;

 private:
  struct Entry {
    std::string reason;
    bool blocked = false;
    Instant since{};     // it is blocked
    Instant probe_at{};  // the next one
    Duration wait{0};    // for the first probe of the last time that it failed
    int unreceived = 0;  // probes that were requested since one was reported
    std::optional<Instant> probed_at;
    std::string trouble;  // of the last probe
  };
  std::map<std::pair<NodeId, NodeId>, Entry> pairs_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MEASUREMENTS_CORRECTIONS_H_
