#include "coordinator/planner/grouping.h"

#include <algorithm>
#include <cstddef>

namespace atl::plan {
namespace {

// Compositions in units of `unit` entities that reach `weakest` and `min_bytes` and from which
// nothing can be taken away.
class Fillings {
 public:
  Fillings(const std::vector<EntityClass>& classes, int unit, double micro_batches,
           int64_t min_bytes)
      : classes_(classes), unit_(unit), micro_batches_(micro_batches), min_bytes_(min_bytes) {
    for (const EntityClass& c : classes) most_.push_back(c.count / unit);
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
    if (found.size() > 2000) return;
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
};

// The most groups that fit into the counts, each one of the fillings; fills `groups` when there are
// at least `wanted`.
bool Pack(const std::vector<int>& most, const std::vector<Composition>& fillings, int wanted,
          std::vector<Composition>* groups) {
  std::vector<int64_t> stride(most.size() + 1, 1);
  for (size_t t = 0; t < most.size(); ++t) stride[t + 1] = stride[t] * (most[t] + 1);
  const int64_t states = stride.back();
  std::vector<int16_t> best(states, 0);
  std::vector<int16_t> choice(states, -1);
  std::vector<int64_t> offset;
  for (const Composition& c : fillings) {
    int64_t o = 0;
    for (size_t t = 0; t < c.size(); ++t) o += c[t] * stride[t];
    offset.push_back(o);
  }
  std::vector<int> have(most.size(), 0);
  for (int64_t state = 0; state < states; ++state) {
    for (size_t f = 0; f < fillings.size(); ++f) {
      const Composition& c = fillings[f];
      bool fits = true;
      for (size_t t = 0; t < c.size() && fits; ++t) fits = c[t] <= have[t];
      if (fits && best[state - offset[f]] + 1 > best[state]) {
        best[state] = static_cast<int16_t>(best[state - offset[f]] + 1);
        choice[state] = static_cast<int16_t>(f);
      }
    }
    for (size_t t = 0; t < most.size() && ++have[t] > most[t]; ++t) have[t] = 0;
  }
  if (best[states - 1] < wanted) return false;
  groups->clear();
  int64_t state = states - 1;
  for (int g = 0; g < wanted; ++g) {
    groups->push_back(fillings[choice[state]]);
    state -= offset[choice[state]];
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
  const auto states_of = [&](int unit) {
    int64_t product = 1;
    for (const EntityClass& c : classes) {
      product = std::min<int64_t>(product * (c.count / unit + 1), int64_t{1} << 40);
    }
    return product;
  };
  int unit = 1;
  while (states_of(unit) > states) ++unit;
  // A unit may not be more than a group's share, or there would be too few units to deal.
  double total = 0;
  int entities = 0;
  for (const EntityClass& c : classes) {
    total += c.power * c.count;
    entities += c.count;
  }
  if (groups < 1 || groups > entities || total <= 0) return std::nullopt;
  unit = std::max(1, std::min(unit, entities / groups));
  if (states_of(unit) > 64 * states) return std::nullopt;
  const Fillings fillings(classes, unit, micro_batches, min_bytes);
  std::vector<Composition> best;
  if (!Pack(fillings.most(), fillings.Minimal(0), groups, &best)) return std::nullopt;
  double low = 0;
  double high = total / groups;
  for (int i = 0; i < 10; ++i) {
    const double middle = (low + high) / 2;
    std::vector<Composition> packed;
    if (Pack(fillings.most(), fillings.Minimal(middle), groups, &packed)) {
      best = std::move(packed);
      low = middle;
    } else {
      high = middle;
    }
  }
  for (Composition& group : best) {
    for (int& n : group) n *= unit;
  }
  GiveLeftovers(classes, micro_batches, best);
  GroupChoice choice{std::move(best), 1e300};
  std::sort(choice.groups.begin(), choice.groups.end());
  for (const Composition& group : choice.groups) {
    choice.weakest = std::min(choice.weakest, EffectivePower(classes, group, micro_batches));
  }
  return choice;
}

}  // namespace atl::plan
