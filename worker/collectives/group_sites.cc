#include "worker/collectives/group_sites.h"

#include <map>

namespace atl::worker {

GroupSites::GroupSites(const std::vector<std::string>& sites, int size, int rank) : rank_(rank) {
  std::map<std::string, int> numbers;
  for (int r = 0; r < size; ++r) {
    const auto [it, is_new] =
        numbers.try_emplace(sites.empty() ? "" : sites[r], static_cast<int>(members_.size()));
    if (is_new) members_.emplace_back();
    members_[static_cast<size_t>(it->second)].push_back(r);
    number_.push_back(it->second);
  }
  std::vector<size_t> parts(members_.size());  // that each site has agents for so far
  for (int owner = 0; owner < size; ++owner) {
    std::vector<int>& agents = agents_.emplace_back();
    for (size_t site = 0; site < members_.size(); ++site) {
      const bool owned_here = number_[owner] == static_cast<int>(site);
      agents.push_back(owned_here ? owner : members_[site][parts[site]++ % members_[site].size()]);
    }
    if (!IsOwn(owner) && Agent(owner) == rank_) served_.push_back(owner);
  }
}

}  // namespace atl::worker
