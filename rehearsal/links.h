// Links between sites, and servers' and workers' network cards within one, in virtual time.
// Transfers share a link's bandwidth evenly, each direction by itself; a link that is down carries
// nothing, and what is on its way waits.

#ifndef ATOLL_REHEARSAL_LINKS_H_
#define ATOLL_REHEARSAL_LINKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rehearsal/scene.h"
#include "rehearsal/world/timeline.h"

namespace atl::rehearsal {

class Links {
 public:
  using Ends = std::pair<std::string, std::string>;  // sites, from and to
  // Where a transfer passes: the link between two sites, or, within one, the card of the node that
  // serves it (`receives`: in that direction). Cards of others carry less at a time, and do not
  // bound it.
  struct Path {
    Ends ends;
    std::string node;
    bool receives = true;
    std::string other = {};  // a node at its other end that may fail
  };

  // All outlive it.
  Links(const Scene* scene, Timeline* timeline) : scene_(*scene), timeline_(*timeline) {}

  // Calls `arrived` when the last byte is there. Returns its number.
  int64_t Send(const Path& path, double bytes, Timeline::Action arrived);
  // Calls `arrived` a latency later; while the link is down it waits until it is up again.
  void Say(const Ends& ends, Timeline::Action arrived);
  // It is not wanted any more; unknown numbers are ignored.
  void Cancel(int64_t transfer);
  // The node has ended: what it serves arrives no more. Calls `arrived` of each, which finds that.
  void Break(const std::string& node);
  // Returns whether the transfer's link is up; none: it is not on its way.
  std::optional<bool> IsMoving(int64_t transfer) const;
  // Until so many bytes are there that nothing shares the card with.
  Duration TimeAlone(const Ends& ends, double bytes) const;
  // Until a short message is there, on a link that is up.
  Duration Latency(const Ends& ends) const;
  bool IsUp(const Ends& ends) const;
  // Multiplies the bandwidth of a link between sites; 0: it is down. Several failures of a link
  // multiply.
  void Change(const Ends& ends, double factor);
  void Restore(const Ends& ends, double factor);

 private:
  using Key = std::tuple<Ends, std::string, bool>;  // of a card; nameless: between sites
  struct Link {
    double bytes_per_s = 0;
    Duration latency{0};
    // By how much each transfer has been carried when it is done, since the link was idle.
    std::map<std::pair<double, int64_t>, Timeline::Action> transfers = {};
    double carried = 0;  // at `since`
    Instant since;
    int64_t tick = 0;
    double factor = 1;
    int down = 0;                             // failures that take it down
    std::vector<Timeline::Action> said = {};  // meanwhile
  };
  struct Place {
    Path path;
    Link* link = nullptr;
    double done_at = 0;  // of Link::transfers
  };

  Link& GetLink(const Ends& ends, const std::string& node, bool receives);
  // The rate of each transfer.
  static double BytesPerSecond(const Link& link);
  // Moves what has been carried until now.
  void Advance(Link& link);
  void Schedule(Link& link);
  Timeline::Action Take(std::map<int64_t, Place>::iterator place);

  const Scene& scene_;
  Timeline& timeline_;
  std::map<Key, Link, std::less<>> links_;
  std::map<int64_t, Place> where_;
  int64_t next_ = 1;
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_LINKS_H_
