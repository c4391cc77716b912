#include "common/protocol/commit_exchange.h"

#include <algorithm>
#include <map>

#include "common/check.h"

namespace atl {
namespace {

constexpr size_t kHeadsMost = 6;    // that exchange directly: one latency, and few messages a head
constexpr size_t kBlocksOfOne = 4;  // of an island at one site

using Block = std::vector<int>;

// A binomial tree: its root is the first one. The children of a place are those behind it by 1, 2,
// 4, ..., below the lowest bit of its own number.
void AddTree(const Block& block, std::vector<CommitPosition>* positions) {
  for (size_t i = 0; i < block.size(); ++i) {
    for (size_t bit = 1; bit < block.size() && (i & bit) == 0 && i + bit < block.size();
         bit <<= 1) {
      (*positions)[block[i]].below.push_back(block[i + bit]);
      (*positions)[block[i + bit]].above = block[i];
    }
  }
}

std::vector<Block> BlocksBySite(const std::vector<std::string>& sites) {
  std::map<std::string, size_t> known;
  std::vector<Block> blocks;
  for (size_t d = 0; d < sites.size(); ++d) {
    const auto [it, is_new] = known.try_emplace(sites[d], blocks.size());
    if (is_new) blocks.emplace_back();
    blocks[it->second].push_back(static_cast<int>(d));
  }
  return blocks;
}

std::vector<Block> Split(const Block& all) {
  const size_t count = std::min(all.size(), kBlocksOfOne);
  std::vector<Block> blocks;
  for (size_t b = 0; b < count; ++b) {
    blocks.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(all.size() * b / count),
                        all.begin() + static_cast<std::ptrdiff_t>(all.size() * (b + 1) / count));
  }
  return blocks;
}

}  // namespace

std::vector<CommitPosition> PlanCommitExchange(const std::vector<std::string>& sites) {
  std::vector<CommitPosition> positions(sites.size());
  std::vector<Block> blocks = BlocksBySite(sites);
  if (blocks.size() == 1) blocks = Split(blocks[0]);
  Block heads;
  for (const Block& block : blocks) {
    AddTree(block, &positions);
    heads.push_back(block[0]);
  }
  if (heads.size() > kHeadsMost) {
    AddTree(heads, &positions);
  } else if (heads.size() > 1) {
    for (const int head : heads) positions[head].heads = heads;
  }
  return positions;
}

std::vector<std::string> ListDeviceSites(const IslandPlan& plan,
                                         const std::vector<std::string>& devices) {
  std::map<NodeId, std::string> site_of;
  for (const IslandMember& member : plan.members) site_of[member.worker] = member.site;
  std::vector<std::string> sites;
  for (const std::string& device : devices) {
    const auto found = site_of.find(WorkerFromDevice(device));
    sites.push_back(found == site_of.end() ? "" : found->second);
  }
  return sites;
}

std::vector<double> CommitSeconds(const std::vector<CommitPosition>& positions,
                                  const std::vector<double>& ready_s,
                                  const std::function<double(int from, int to)>& message_s) {
  ATOLL_CHECK(positions.size() == ready_s.size(), "a time for every device");
  // Roots first, so that in one direction who is above comes before who is below.
  std::vector<int> order;
  for (size_t d = 0; d < positions.size(); ++d) {
    if (positions[d].above < 0) order.push_back(static_cast<int>(d));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const std::vector<int>& below = positions[order[i]].below;
    order.insert(order.end(), below.begin(), below.end());
  }
  std::vector<double> summed_s = ready_s;
  for (size_t i = order.size(); i-- > 0;) {
    for (const int child : positions[order[i]].below) {
      summed_s[order[i]] =
          std::max(summed_s[order[i]], summed_s[child] + message_s(child, order[i]));
    }
  }
  std::vector<double> known_s = summed_s;
  for (const int d : order) {
    for (const int head : positions[d].heads) {
      if (head != d) known_s[d] = std::max(known_s[d], summed_s[head] + message_s(head, d));
    }
    for (const int child : positions[d].below) known_s[child] = known_s[d] + message_s(d, child);
  }
  return known_s;
}

}  // namespace atl
