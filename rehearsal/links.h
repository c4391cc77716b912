// Links between sites in virtual time: transfers share a link's bandwidth evenly, each direction by
// itself; a link that is down carries nothing, and what is on its way waits.

#ifndef ATOLL_REHEARSAL_LINKS_H_
#define ATOLL_REHEARSAL_LINKS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rehearsal/scene.h"
#include "rehearsal/world/timeline.h"

namespace atl::rehearsal {

class Links {
 public:
  using Ends = std::pair<std::string, std::string>;  // sites, from and to

  // All outlive it.
  Links(const Scene* scene, Timeline* timeline) : scene_(*scene), timeline_(*timeline) {}

  // Calls `arrived` when the last byte is there. Returns its number.
  int64_t Send(const Ends& ends, double bytes, Timeline::Action arrived);
  // Calls `arrived` a latency later; while the link is down it waits until it is up again.
  void Say(const Ends& ends, Timeline::Action arrived);
  // It is not wanted any more; unknown numbers are ignored.
  void Cancel(int64_t transfer);
  // Where a transfer that is on its way passes; null: it is not.
  const Ends* Find(int64_t transfer) const;
  // Until a short message is there, on a link that is up.
  Duration Latency(const Ends& ends) const;
  bool IsUp(const Ends& ends) const;
  // Multiplies its bandwidth; 0: it is down. Several failures of a link multiply.
  void Change(const Ends& ends, double factor);
  void Restore(const Ends& ends, double factor);

 private:
  struct Transfer {
    double left = 0;  // bytes
    Timeline::Action arrived;
  };
  struct Link {
    std::map<int64_t, Transfer> transfers;
    Instant since;  // what is left is of this time
    int64_t tick = 0;
    double factor = 1;
    int down = 0;                             // failures that take it down
    std::vector<Timeline::Action> said = {};  // meanwhile
  };

  double BytesPerSecond(const Ends& ends, const Link& link) const;
  // Moves what has been carried until now.
  void Advance(const Ends& ends, Link& link);
  void Schedule(const Ends& ends, Link& link);

  const Scene& scene_;
  Timeline& timeline_;
  std::map<Ends, Link> links_;
  std::map<int64_t, Ends> where_;
  int64_t next_ = 1;
};

}  // namespace atl::rehearsal

#endif  // ATOLL_REHEARSAL_LINKS_H_
