// Who of a group speaks for its site: pure.

#ifndef ATOLL_WORKER_COLLECTIVES_GROUP_SITES_H_
#define ATOLL_WORKER_COLLECTIVES_GROUP_SITES_H_

#include <string>
#include <vector>

namespace atl::worker {

// Sites of a group's members, as one of them sees them. Sites are numbered by their first ranks.
// All members agree on all of it.
class GroupSites {
 public:
  // `sites`: of each of `size` ranks; empty: all are at one site.
  GroupSites(const std::vector<std::string>& sites, int size, int rank);

  int count() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members(int site) const { return members_[site]; }  // ascending ranks
  int own_number() const { return number_[rank_]; }
  const std::vector<int>& own() const { return members_[own_number()]; }
  bool IsOwn(int rank) const { return number_[rank] == own_number(); }

  // Returns who handles the part of `owner` at a site: the owner at its own; at each other site its
  // members round-robin, so that all of them have about as many parts.
  int Agent(int owner, int site) const { return agents_[owner][site]; }
  int Agent(int owner) const { return Agent(owner, own_number()); }  // at this member's site
  // Owners at other sites whose agent this member is, ascending.
  const std::vector<int>& served() const { return served_; }

 private:
  const int rank_;
  std::vector<int> number_;                // of each rank's site
  std::vector<std::vector<int>> members_;  // by site
  std::vector<std::vector<int>> agents_;   // by owner, site
  std::vector<int> served_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_GROUP_SITES_H_
