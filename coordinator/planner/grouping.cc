#include "coordinator/planner/grouping.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace atl::plan {
namespace {

// States times fillings; less where classes were merged, which is rough anyway.
constexpr int64_t kPackWork = 200'000;
constexpr int64_t kMergedWork = 50'000;

// Compositions in units of `unit` entities that reach `weakest` and `min_bytes` and are minimal.
class Fillings {
 public:
  Fillings(const std::vector<EntityClass>& classes, int unit, double micro_batches,
           int64_t min_bytes, int64_t work)
      : classes_(classes), unit_(unit), micro_batches_(micro_batches), min_bytes_(min_bytes) {
    int64_t states = 1;
    for (const EntityClass& c : classes) {
      most_.push_back(c.count / unit);
      states *= most_.back() + 1;
    }
    most_found_ = static_cast<size_t>(std::clamp<int64_t>(work / states, 32, 2000));
  }

  const std::vector<int>& most() const { return most_; }

  std::vector<Composition> Minimal(double weakest) const {
    std::vector<Composition> found;
    Composition now(classes_.size(), 0);
    Extend(0, weakest, now, found);
    return found;
  }

 private:
  bool Enough(const Composition& c, double weakest) const {
    double power = 0;
    int64_t bytes = 0;
    int members = 0;
    for (size_t t = 0; t < c.size(); ++t) {
      const int n = c[t] * unit_;
      power += n * classes_[t].power;
      bytes += n * classes_[t].memory_bytes;
      members += n;
    }
    if (members == 0 || bytes < min_bytes_) return false;
    return power * micro_batches_ / (micro_batches_ + members - 1) >= weakest;
  }

  void Extend(size_t t, double weakest, Composition& now, std::vector<Composition>& found) const {
    if (found.size() >= most_found_) return;
    if (t == classes_.size()) {
      if (!Enough(now, weakest)) return;
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
      Extend(t + 1, weakest, now, found);
      // Once enough, more of this class is never minimal.
      Composition rest = now;
      std::fill(rest.begin() + static_cast<std::ptrdiff_t>(t) + 1, rest.end(), 0);
      if (Enough(rest, weakest)) break;
    }
    now[t] = 0;
  }

  const std::vector<EntityClass>& classes_;
  const int unit_;
  const double micro_batches_;
  const int64_t min_bytes_;
  std::vector<int> most_;
  size_t most_found_ = 0;
};

// Counts of all classes in one number, each with a bit above it that no count has; none of classes
// that have no units. There is room: a class takes at most twice the bits that its count + 1 adds
// to the number of states, which is bounded (GroupByCounts).
class PackedCounts {
 public:
  explicit PackedCounts(const std::vector<int>& most) {
    int shift = 0;
    for (const int count : most) {
      shifts_.push_back(shift);
      if (count == 0) continue;
      shift += std::bit_width(static_cast<unsigned>(count)) + 1;
      guards_ |= uint64_t{1} << (shift - 1);
    }
    ATOLL_CHECK(shift <= 64);
  }

  uint64_t Pack(const std::vector<int>& counts) const {
    uint64_t packed = 0;
    for (size_t t = 0; t < counts.size(); ++t) {
      if (counts[t] > 0) packed |= static_cast<uint64_t>(counts[t]) << shifts_[t];
    }
    return packed;
  }
  // Whether all counts of `part` are at most those of `all`.
  bool Holds(uint64_t all, uint64_t part) const {
    return (((all | guards_) - part) & guards_) == guards_;
  }

 private:
  std::vector<int> shifts_;
  uint64_t guards_ = 0;
};

// Whether so many fillings have more members than there are, of one class or in all: then Pack need
// not try.
bool AreTooLarge(const std::vector<int>& most, const std::vector<Composition>& fillings,
                 int wanted) {
  const auto least = [&](const auto& of) {
    int64_t least = INT64_MAX;
    for (const Composition& c : fillings) least = std::min<int64_t>(least, of(c));
    return least;
  };
  const auto sum = [](const Composition& c) { return std::accumulate(c.begin(), c.end(), 0); };
  if (fillings.empty() || wanted * least(sum) > sum(most)) return true;
  for (size_t t = 0; t < most.size(); ++t) {
    if (wanted * least([&](const Composition& c) { return c[t]; }) > most[t]) return true;
  }
  return false;
}

// The most groups that fit into the counts, each one of the fillings; fills `groups` when there are
// at least `wanted`.
bool Pack(const std::vector<int>& most, const std::vector<Composition>& fillings, int wanted,
          std::vector<Composition>* groups) {
  if (AreTooLarge(most, fillings, wanted)) return false;
  const PackedCounts packed(most);
  std::vector<int64_t> stride(most.size() + 1, 1);
  for (size_t t = 0; t < most.size(); ++t) stride[t + 1] = stride[t] * (most[t] + 1);
  const int64_t states = stride.back();
  std::vector<int16_t> best(states, 0);
  struct Option {
    uint64_t counts = 0;
    int64_t offset = 0;
  };
  std::vector<Option> options;
  for (const Composition& c : fillings) {
    Option& option = options.emplace_back();
    option.counts = packed.Pack(c);
    for (size_t t = 0; t < c.size(); ++t) option.offset += c[t] * stride[t];
  }
  std::vector<uint64_t> counts;
  std::vector<int> have(most.size(), 0);
  for (int64_t state = 0; state < states; ++state) {
    counts.push_back(packed.Pack(have));
    for (size_t t = 0; t < most.size() && ++have[t] > most[t]; ++t) have[t] = 0;
  }
  for (const Option& option : options) {
    for (int64_t state = option.offset; state < states; ++state) {
      if (!packed.Holds(counts[state], option.counts)) continue;
      best[state] = std::max<int16_t>(best[state], best[state - option.offset] + 1);
    }
  }
  if (best[states - 1] < wanted) return false;
  groups->clear();
  int64_t state = states - 1;
  for (int g = 0; g < wanted; ++g) {
    // The first filling that leaves room for as many.
    size_t f = 0;
    while (!packed.Holds(counts[state], options[f].counts) ||
           best[state - options[f].offset] + 1 < best[state]) {
      ++f;
    }
    groups->push_back(fillings[f]);
    state -= options[f].offset;
  }
  return true;
}

// Hands out what is left over: each entity to the weakest group that it strengthens.
void GiveLeftovers(const std::vector<EntityClass>& classes, double micro_batches,
                   std::vector<Composition>& groups) {
  for (size_t t = 0; t < classes.size(); ++t) {
    int left = classes[t].count;
    for (const Composition& group : groups) left -= group[t];
    for (; left > 0; --left) {
      int weakest = -1;
      double least = 0;
      for (size_t g = 0; g < groups.size(); ++g) {
        const double now = EffectivePower(classes, groups[g], micro_batches);
        Composition more = groups[g];
        ++more[t];
        if (EffectivePower(classes, more, micro_batches) <= now) continue;
        if (weakest >= 0 && now >= least) continue;
        weakest = static_cast<int>(g);
        least = now;
      }
      if (weakest < 0) break;
      ++groups[weakest][t];
    }
  }
}

// Classes of like power as one, of the mean power and the least memory; with a ratio of 0 only
// equal ones (of several sites).
struct Merged {
  std::vector<EntityClass> classes;
  std::vector<std::vector<size_t>> members;  // of each, weakest first
};

Merged MergeAlike(const std::vector<EntityClass>& classes, double ratio) {
  std::vector<size_t> order;
  for (size_t t = 0; t < classes.size(); ++t) {
    if (classes[t].count > 0) order.push_back(t);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(classes[a].power, classes[a].memory_bytes) <
           std::pair(classes[b].power, classes[b].memory_bytes);
  });
  Merged merged;
  for (const size_t t : order) {
    const EntityClass& c = classes[t];
    const EntityClass* first =
        merged.members.empty() ? nullptr : &classes[merged.members.back().front()];
    const bool near =
        first != nullptr && (c.power <= ratio * first->power ||
                             (c.power == first->power && c.memory_bytes == first->memory_bytes));
    if (!near) {
      merged.classes.push_back(c);
      merged.members.push_back({t});
      continue;
    }
    EntityClass& last = merged.classes.back();
    last.power = (last.power * last.count + c.power * c.count) / (last.count + c.count);
    last.memory_bytes = std::min(last.memory_bytes, c.memory_bytes);
    last.count += c.count;
    merged.members.back().push_back(t);
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
    for (const Composition& group : groups) wanted.push_back(group[m]);
    for (size_t i = merged.members[m].size(); i-- > 0;) {
      const size_t t = merged.members[m][i];
      for (int left = classes[t].count; left > 0; --left) {
        size_t to = groups.size();
        for (size_t g = 0; g < groups.size(); ++g) {
          if (wanted[g] > 0 && (to == groups.size() || power[g] < power[to])) to = g;
        }
        if (to == groups.size()) break;  // the rest idles
        --wanted[to];
        ++own[to][t];
        power[to] += classes[t].power;
      }
    }
  }
  return own;
}

// Each entity, strongest first, to the group with the least power: for any number of classes.
// Nothing if a group then lacks memory.
std::optional<std::vector<Composition>> DivideByPower(const std::vector<EntityClass>& classes,
                                                      int groups, int64_t min_bytes) {
  const Merged all = MergeAlike(classes, 1e300);
  if (all.members.empty()) return std::nullopt;
  const std::vector<Composition> wanted(groups, Composition(1, all.classes[0].count));
  std::vector<Composition> assigned = Unmerge(classes, all, wanted);
  for (const Composition& group : assigned) {
    int64_t bytes = 0;
    for (size_t t = 0; t < group.size(); ++t) bytes += group[t] * classes[t].memory_bytes;
    if (bytes < min_bytes || bytes == 0) return std::nullopt;
  }
  return assigned;
}

double WeakestOf(const std::vector<EntityClass>& classes, const std::vector<Composition>& groups,
                 double micro_batches) {
  double weakest = 1e300;
  for (const Composition& group : groups) {
    weakest = std::min(weakest, EffectivePower(classes, group, micro_batches));
  }
  return weakest;
}

// Products of counts + 1 in units of `unit`.
int64_t StatesOf(const std::vector<EntityClass>& classes, int unit) {
  int64_t product = 1;
  for (const EntityClass& c : classes) {
    product = std::min<int64_t>(product * (c.count / unit + 1), int64_t{1} << 40);
  }
  return product;
}

// The best packing of fillings, by bisection on the weakest group.
std::optional<std::vector<Composition>> PackBest(const std::vector<EntityClass>& classes, int unit,
                                                 int groups, double micro_batches,
                                                 int64_t min_bytes, int64_t work) {
  const Fillings fillings(classes, unit, micro_batches, min_bytes, work);
  std::vector<Composition> best;
  std::vector<Composition> enough = fillings.Minimal(0), too_large;  // the last ones of each
  if (!Pack(fillings.most(), enough, groups, &best)) return std::nullopt;
  double low = 0;
  double high = 0;
  for (const EntityClass& c : classes) high += c.power * c.count / groups;
  for (int i = 0; i < 10; ++i) {
    const double middle = (low + high) / 2;
    std::vector<Composition> minimal = fillings.Minimal(middle);
    const bool known = minimal == enough || minimal == too_large;
    const bool packs = known ? minimal == enough : Pack(fillings.most(), minimal, groups, &best);
    (packs ? low : high) = middle;
    (packs ? enough : too_large) = std::move(minimal);
  }
  for (Composition& group : best) {
    for (int& n : group) n *= unit;
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
                                         double micro_batches, int64_t min_bytes, int64_t states) {
  int entities = 0;
  double total = 0;
  for (const EntityClass& c : classes) {
    entities += c.count;
    total += c.power * c.count;
  }
  if (groups < 1 || groups > entities || total <= 0) return std::nullopt;
  // Like classes count as one until there are few enough states. Of few classes, entities are
  // distributed in units; a unit may not be more than a group's share, or there would be too few of
  // them.
  const int largest_unit = std::max(1, entities / groups);
  Merged merged;
  int unit = 1;
  int64_t work = kPackWork;
  for (const double ratio : {0.0, 1.05, 1.1, 1.25, 1.4, 1.6, 2.0, 3.0, 1e300}) {
    merged = MergeAlike(classes, ratio);
    unit = 1;
    while (unit < largest_unit && StatesOf(merged.classes, unit) > states) ++unit;
    if (StatesOf(merged.classes, unit) <= (ratio == 0 ? states : states / 4)) break;
    work = kMergedWork;
  }
  std::optional<std::vector<Composition>> best;
  // Where even one class has too many states there are too many groups for it to matter.
  if (StatesOf(merged.classes, unit) <= states) {
    auto packed = PackBest(merged.classes, unit, groups, micro_batches, min_bytes, work);
    if (packed) best = Unmerge(classes, merged, *packed);
  }
  if (best) GiveLeftovers(classes, micro_batches, *best);
  auto assigned = DivideByPower(classes, groups, min_bytes);
  if (assigned && (!best || WeakestOf(classes, *assigned, micro_batches) >
                                WeakestOf(classes, *best, micro_batches) * (1 + 1e-9))) {
    best = std::move(assigned);
  }
  if (!best) return std::nullopt;
  std::sort(best->begin(), best->end());
  const double weakest = WeakestOf(classes, *best, micro_batches);
  return GroupChoice{*std::move(best), weakest};
}

}  // namespace atl::plan
