#include "coordinator/planner/groups/grouping.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <utility>

namespace atl::plan {
namespace {

constexpr int64_t kStates = 4096;       // up to which groups are packed
constexpr int64_t kPackWork = 200'000;  // states times fillings

// Compositions that reach `weakest` and `min_bytes` and are minimal.
class Fillings {
 public:
  Fillings(const std::vector<EntityClass>& classes, double micro_batches, int64_t min_bytes)
      : classes_(classes), micro_batches_(micro_batches), min_bytes_(min_bytes) {
    int64_t states = 1;
    for (const EntityClass& c : classes) {
      most_.push_back(c.count);
      states *= c.count + 1;
    }
    most_found_ = static_cast<size_t>(std::clamp<int64_t>(kPackWork / states, 32, 2000));
  }

  const std::vector<int>& most() const { return most_; }

  std::vector<Composition> Minimal(double weakest) const {
    std::vector<Composition> found;
    Composition now(classes_.size(), 0);
    Extend(0, {}, weakest, now, found);
    return found;
  }

 private:
  // Sums over some of a composition's classes.
  struct Sums {
    double power = 0;
    int64_t bytes = 0;
    int members = 0;
  };

  Sums With(const Sums& sums, size_t t, int n) const {
    return {sums.power + n * classes_[t].power, sums.bytes + n * classes_[t].memory_bytes,
            sums.members + n};
  }

  bool Enough(const Sums& sums, double weakest) const {
    if (sums.members == 0 || sums.bytes < min_bytes_) return false;
    return sums.power * micro_batches_ / (micro_batches_ + sums.members - 1) >= weakest;
  }
  bool Enough(const Composition& c, double weakest) const {
    Sums sums;
    for (size_t t = 0; t < c.size(); ++t) sums = With(sums, t, c[t]);
    return Enough(sums, weakest);
  }

  // `sums`: of the classes before t.
  void Extend(size_t t, const Sums& sums, double weakest, Composition& now,
              std::vector<Composition>& found) const {
    if (found.size() >= most_found_) return;
    if (t == classes_.size()) {
      if (!Enough(sums, weakest)) return;
      for (size_t u = 0; u < now.size(); ++u) {
        if (now[u] == 0) continue;
        --now[u];
        const bool less = Enough(now, weakest);
        ++now[u];
        if (less) return;
      }
      found.push_back(now);
      return;
    }
    for (int n = 0; n <= most_[t]; ++n) {
      now[t] = n;
      const Sums with = With(sums, t, n);
      Extend(t + 1, with, weakest, now, found);
      if (Enough(with, weakest)) break;  // more of this class is never minimal
    }
    now[t] = 0;
  }

  const std::vector<EntityClass>& classes_;
  const double micro_batches_;
  const int64_t min_bytes_;
  std::vector<int> most_;
  size_t most_found_ = 0;
};

// Returns whether so many fillings have more members than there are, of one class or in all, or
// more power than all members: then Pack need not try.
bool AreTooLarge(const std::vector<EntityClass>& classes, const std::vector<int>& most,
                 const std::vector<Composition>& fillings, int wanted) {
  if (fillings.empty()) return true;
  const auto exceeds = [&](const auto& of) {
    double least = INFINITY;
    for (const Composition& c : fillings) least = std::min<double>(least, of(c));
    return wanted * least > of(most) * (1 + 1e-9);
  };
  for (size_t t = 0; t < most.size(); ++t) {
    if (exceeds([&](const Composition& c) { return c[t]; })) return true;
  }
  return exceeds([](const Composition& c) { return std::accumulate(c.begin(), c.end(), 0); }) ||
         exceeds([&](const Composition& c) {
           double power = 0;
           for (size_t t = 0; t < c.size(); ++t) power += c[t] * classes[t].power;
           return power;
         });
}

// Calls `visit` with the state of all counts that are at least `from` and at most `most`,
// ascending.
template <class Visit>
void VisitStates(const Composition& from, const std::vector<int>& most,
                 const std::vector<int64_t>& stride, const Visit& visit) {
  int64_t state = 0;
  for (size_t t = 0; t < from.size(); ++t) state += from[t] * stride[t];
  Composition at = from;
  while (true) {
    for (int n = from[0]; n <= most[0]; ++n) visit(state + n - from[0]);
    size_t t = 1;
    for (; t < at.size() && at[t] == most[t]; ++t) {
      state -= (at[t] - from[t]) * stride[t];
      at[t] = from[t];
    }
    if (t >= at.size()) return;
    ++at[t];
    state += stride[t];
  }
}

// The most groups that fit into the counts, each one of the fillings; fills `groups` when there are
// at least `wanted`.
bool Pack(const std::vector<EntityClass>& classes, const std::vector<int>& most,
          const std::vector<Composition>& fillings, int wanted, std::vector<Composition>* groups) {
  if (AreTooLarge(classes, most, fillings, wanted)) return false;
  std::vector<int64_t> stride(most.size() + 1, 1);
  for (size_t t = 0; t < most.size(); ++t) stride[t + 1] = stride[t] * (most[t] + 1);
  std::vector<int16_t> best(stride.back(), 0);
  const auto offset_of = [&](const Composition& c) {
    return std::inner_product(c.begin(), c.end(), stride.begin(), int64_t{0});
  };
  for (const Composition& c : fillings) {
    const int64_t offset = offset_of(c);
    VisitStates(c, most, stride, [&](int64_t state) {
      best[state] = std::max<int16_t>(best[state], best[state - offset] + 1);
    });
  }
  if (best.back() < wanted) return false;
  groups->clear();
  Composition left = most;
  int64_t state = std::ssize(best) - 1;
  for (int g = 0; g < wanted; ++g) {
    // The first filling that leaves enough for as many.
    const auto next = std::find_if(fillings.begin(), fillings.end(), [&](const Composition& c) {
      return std::equal(c.begin(), c.end(), left.begin(), std::less_equal<>()) &&
             best[state - offset_of(c)] + 1 >= best[state];
    });
    groups->push_back(*next);
    state -= offset_of(*next);
    for (size_t t = 0; t < left.size(); ++t) left[t] -= (*next)[t];
  }
  return true;
}

// Hands out what is left over: each entity to the weakest group that it strengthens.
void GiveLeftovers(const std::vector<EntityClass>& classes, double micro_batches,
                   std::vector<Composition>& groups) {
  const auto power_of = [&](const Composition& group) {
    return EffectivePower(classes, group, micro_batches);
  };
  std::vector<double> power;
  for (const Composition& group : groups) power.push_back(power_of(group));
  for (size_t t = 0; t < classes.size(); ++t) {
    int left = classes[t].count;
    for (const Composition& group : groups) left -= group[t];
    for (; left > 0; --left) {
      int weakest = -1;
      double stronger = 0;
      for (size_t g = 0; g < groups.size(); ++g) {
        if (weakest >= 0 && power[g] >= power[weakest]) continue;
        ++groups[g][t];
        const double more = power_of(groups[g]);
        --groups[g][t];
        if (more <= power[g]) continue;
        weakest = static_cast<int>(g);
        stronger = more;
      }
      if (weakest < 0) break;
      ++groups[weakest][t];
      power[weakest] = stronger;
    }
  }
}

// Equal classes (of several sites) as one.
struct Merged {
  std::vector<EntityClass> classes;
  std::vector<std::vector<size_t>> members;  // of each
};

Merged MergeEqual(const std::vector<EntityClass>& classes) {
  std::map<std::pair<double, int64_t>, std::vector<size_t>> equal;
  for (size_t t = 0; t < classes.size(); ++t) {
    if (classes[t].count > 0) equal[{classes[t].power, classes[t].memory_bytes}].push_back(t);
  }
  Merged merged;
  for (auto& [what, members] : equal) {
    EntityClass& one = merged.classes.emplace_back(EntityClass{what.first, what.second, 0});
    for (const size_t t : members) one.count += classes[t].count;
    merged.members.push_back(std::move(members));
  }
  return merged;
}

// Groups of merged classes in the classes' own members: strong ones to the groups that are weakest
// by then.
std::vector<Composition> Unmerge(const std::vector<EntityClass>& classes, const Merged& merged,
                                 const std::vector<Composition>& groups) {
  std::vector<Composition> own(groups.size(), Composition(classes.size(), 0));
  std::vector<double> power(groups.size(), 0);
  for (size_t m = merged.members.size(); m-- > 0;) {
    std::vector<int> wanted;
    std::priority_queue<std::pair<double, size_t>, std::vector<std::pair<double, size_t>>,
                        std::greater<>>
        weakest;  // of those that want more: by power, then the first
    for (size_t g = 0; g < groups.size(); ++g) {
      wanted.push_back(groups[g][m]);
      if (wanted[g] > 0) weakest.push({power[g], g});
    }
    for (size_t i = merged.members[m].size(); i-- > 0;) {
      const size_t t = merged.members[m][i];
      for (int left = classes[t].count; left > 0 && !weakest.empty(); --left) {  // the rest idles
        const size_t to = weakest.top().second;
        weakest.pop();
        ++own[to][t];
        power[to] += classes[t].power;
        if (--wanted[to] > 0) weakest.push({power[to], to});
      }
    }
  }
  return own;
}

// Each entity, strongest first, to the group with the least power: for any number of classes.
// Nothing if a group then lacks memory.
std::optional<std::vector<Composition>> DivideByPower(const std::vector<EntityClass>& classes,
                                                      int groups, int64_t min_bytes) {
  std::vector<size_t> order(classes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return classes[a].power > classes[b].power; });
  std::vector<Composition> assigned(groups, Composition(classes.size(), 0));
  std::vector<int64_t> bytes(groups, 0);
  std::set<std::pair<double, int>> weakest;  // groups by power
  for (int g = 0; g < groups; ++g) weakest.emplace(0, g);
  for (const size_t t : order) {
    for (int left = classes[t].count; left > 0; --left) {
      const auto [power, to] = *weakest.begin();
      weakest.erase(weakest.begin());
      weakest.emplace(power + classes[t].power, to);
      ++assigned[to][t];
      bytes[to] += classes[t].memory_bytes;
    }
  }
  const int64_t least = *std::ranges::min_element(bytes);
  if (least == 0 || least < min_bytes) return std::nullopt;
  return assigned;
}

double FindWeakestPower(const std::vector<EntityClass>& classes,
                        const std::vector<Composition>& groups, double micro_batches) {
  double weakest = 1e300;
  for (const Composition& group : groups) {
    weakest = std::min(weakest, EffectivePower(classes, group, micro_batches));
  }
  return weakest;
}

// Products of counts + 1.
int64_t CountStates(const std::vector<EntityClass>& classes) {
  int64_t product = 1;
  for (const EntityClass& c : classes) {
    product = std::min<int64_t>(product * (c.count + 1), int64_t{1} << 40);
  }
  return product;
}

// The best packing of fillings, by bisection on the weakest group.
std::optional<std::vector<Composition>> PackBest(const std::vector<EntityClass>& classes,
                                                 int groups, double micro_batches,
                                                 int64_t min_bytes) {
  const Fillings fillings(classes, micro_batches, min_bytes);
  std::vector<Composition> best;
  std::vector<Composition> enough = fillings.Minimal(0), too_large;  // the last ones of each
  if (!Pack(classes, fillings.most(), enough, groups, &best)) return std::nullopt;
  double low = 0;
  double high = 0;
  for (const EntityClass& c : classes) high += c.power * c.count / groups;
  for (int i = 0; i < 12; ++i) {
    const double middle = (low + high) / 2;
    std::vector<Composition> minimal = fillings.Minimal(middle);
    const bool known = minimal == enough || minimal == too_large;
    const bool packs =
        known ? minimal == enough : Pack(classes, fillings.most(), minimal, groups, &best);
    (packs ? low : high) = middle;
    (packs ? enough : too_large) = std::move(minimal);
  }
  return best;
}

}  // namespace

double EffectivePower(const std::vector<EntityClass>& classes, const Composition& group,
                      double micro_batches) {
  double power = 0;
  int members = 0;
  for (size_t t = 0; t < group.size(); ++t) {
    power += group[t] * classes[t].power;
    members += group[t];
  }
  return members == 0 ? 0 : power * micro_batches / (micro_batches + members - 1);
}

std::optional<GroupChoice> GroupByCounts(const std::vector<EntityClass>& classes, int groups,
                                         double micro_batches, int64_t min_bytes) {
  int entities = 0;
  double total = 0;
  for (const EntityClass& c : classes) {
    entities += c.count;
    total += c.power * c.count;
  }
  if (groups < 1 || groups > entities || total <= 0) return std::nullopt;
  const Merged merged = MergeEqual(classes);
  std::optional<std::vector<Composition>> best;
  if (CountStates(merged.classes) <= kStates) {
    auto packed = PackBest(merged.classes, groups, micro_batches, min_bytes);
    if (packed) best = Unmerge(classes, merged, *packed);
    if (best) GiveLeftovers(classes, micro_batches, *best);
  }
  auto assigned = DivideByPower(classes, groups, min_bytes);
  if (assigned && (!best || FindWeakestPower(classes, *assigned, micro_batches) >
                                FindWeakestPower(classes, *best, micro_batches) * (1 + 1e-9))) {
    best = std::move(assigned);
  }
  if (!best) return std::nullopt;
  std::sort(best->begin(), best->end());
  const double weakest = FindWeakestPower(classes, *best, micro_batches);
  return GroupChoice{*std::move(best), weakest};
}

}  // namespace atl::plan
