#include "coordinator/core/sharing/divide.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/estimate.h"
#include "common/plural.h"

namespace atl::coord {
namespace {

constexpr int kMovesMost = 64;     // by weight, at once; the next division has the others
constexpr double kMoveRounds = 2;  // that a worker's move costs: one ends early, one begins late

class Divider {
 public:
  Divider(const std::vector<SharingJob>& jobs, const std::vector<SharingUnit>& units,
          const MayHave& may_have, Rooms& rooms)
      : jobs_(jobs),
        units_(units),
        may_have_(may_have),
        rooms_(rooms),
        in_gang_(units.size(), false),
        own_(jobs.size()),
        has_(jobs.size(), 0) {
    result_.whole.assign(jobs.size(), false);
    std::vector<int64_t> before(jobs.size(), 0);
    for (const SharingUnit& unit : units) {
      if (unit.job) own_[*unit.job].push_back(result_.shares.size());
      result_.shares.push_back({unit.job, ""});
      extra_.push_back(unit.job && before[*unit.job] >= jobs[*unit.job].needed);
      if (unit.job) before[*unit.job] += std::ssize(unit.workers);
    }
    for (size_t job = 0; job < jobs.size(); ++job) has_[job] = before[job] + jobs[job].away;
  }

  Division Divide() {
    std::vector<size_t> order(jobs_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return jobs_[a].priority > jobs_[b].priority; });
    int waiting = 0;
    for (const size_t job : order) {
      if (jobs_[job].idles || (!jobs_[job].started && waiting == kWaitingMost)) continue;
      CompleteGang(job);
      waiting += !jobs_[job].started && !result_.whole[job];
    }
    GiveIdle();
    for (int moves = 0; moves < kMovesMost && Balance(); ++moves) {
    }
    return std::move(result_);
  }

 private:
  int64_t Count(size_t job, const SharingUnit& unit) const {
    return std::count_if(unit.workers.begin(), unit.workers.end(),
                         [&](const NodeId& worker) { return may_have_(job, worker); });
  }
  double Ratio(size_t job, int64_t more) const {
    return static_cast<double>(has_[job] + more) / jobs_[job].weight;
  }

  void Give(size_t unit, size_t job, std::string reason) {
    Share& share = result_.shares[unit];
    const auto workers = std::ssize(units_[unit].workers);
    if (share.job) has_[*share.job] -= workers;
    has_[job] += workers;
    share = {job, units_[unit].job == job ? "" : std::move(reason)};
  }

  // The order in which the job takes units of others, the least first; nothing: it may not have
  // this one.
  using Rank = std::tuple<int, int64_t, int64_t, int64_t>;
  std::optional<Rank> GetRank(size_t job, size_t unit) const {
    const std::optional<size_t>& owner = result_.shares[unit].job;
    const auto at = static_cast<int64_t>(unit);
    if (in_gang_[unit] || owner == job) return std::nullopt;
    if (!owner) return Rank{0, 0, 0, at};
    if (jobs_[*owner].idles) return Rank{0, 2, 0, at};
    const int64_t above = jobs_[*owner].priority - jobs_[job].priority;
    if ((above > 0 || (above == 0 && *owner < job)) && !result_.whole[*owner]) {
      // It waits; an island of an incomplete gang trains on.
      return jobs_[*owner].started ? std::nullopt : std::optional(Rank{0, 1, 0, at});
    }
    if (above > 0) return std::nullopt;
    return Rank{extra_[unit] ? 1 : 2, above, -static_cast<int64_t>(*owner), -at};
  }

  void CompleteGang(size_t job) {
    const int64_t needed = jobs_[job].needed;
    int64_t found = jobs_[job].away;
    std::vector<size_t> gang;
    for (const size_t unit : own_[job]) {
      if (found >= needed) break;
      if (in_gang_[unit]) continue;  // another one's
      gang.push_back(unit);
      found += std::ssize(units_[unit].workers);  // also those that may come back
    }
    rooms_.Save(job);
    if (found < needed) found += TakeFromOthers(job, needed - found, gang);
    if (found < needed) return rooms_.Restore(job);
    result_.whole[job] = true;
    for (const size_t unit : gang) {
      in_gang_[unit] = true;
      const std::optional<size_t> owner = result_.shares[unit].job;
      if (owner == job) continue;
      Give(unit, job, WhyTaken(job, owner));
    }
  }

  // Appends units to the gang. Returns how many workers they have for it.
  int64_t TakeFromOthers(size_t job, int64_t missing, std::vector<size_t>& gang) {
    std::vector<std::pair<Rank, size_t>> ranked;
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      if (const std::optional<Rank> rank = GetRank(job, unit)) ranked.emplace_back(*rank, unit);
    }
    std::sort(ranked.begin(), ranked.end());
    // The first ones may fill islands that others cannot join.
    constexpr size_t kTries = 64;
    for (size_t first = 0; first < std::min(ranked.size(), kTries); ++first) {
      if (first > 0) rooms_.Restore(job);
      int64_t found = 0;
      bool refused = false;
      std::vector<size_t> taken;
      for (size_t i = first; i < ranked.size() && found < missing; ++i) {
        const size_t unit = ranked[i].second;
        int64_t count = 0;
        for (const NodeId& worker : units_[unit].workers) {
          if (!may_have_(job, worker)) continue;
          const bool takes = rooms_.Take(job, worker);
          count += takes;
          refused = refused || !takes;
        }
        if (count > 0) taken.push_back(unit);
        found += count;
      }
      if (found >= missing) {
        gang.insert(gang.end(), taken.begin(), taken.end());
        return found;
      }
      if (!refused) break;
    }
    return 0;
  }

  std::string WhyTaken(size_t job, const std::optional<size_t>& owner) const {
    const SharingJob& to = jobs_[job];
    std::string rule = "others have more than they need";
    if (owner && jobs_[*owner].idles) {
      rule = "nothing is decided of this one meanwhile";
    } else if (owner && jobs_[*owner].priority < to.priority) {
      rule = absl::StrCat("its priority is ", to.priority, ", not ", jobs_[*owner].priority);
    } else if (owner && job < *owner) {
      rule = "it was submitted before";
    }
    return absl::StrCat("job ", to.id, " needs ", CountText(to.needed, "worker"), ": ", rule);
  }

  void GiveIdle() {
    std::vector<size_t> order;
    for (size_t job = 0; job < jobs_.size(); ++job) {
      if (result_.whole[job] || (jobs_[job].started && !jobs_[job].idles)) order.push_back(job);
    }
    const auto before = [&](size_t a, size_t b) {
      return std::tuple(!result_.whole[a], -jobs_[a].priority, Ratio(a, 0)) <
             std::tuple(!result_.whole[b], -jobs_[b].priority, Ratio(b, 0));
    };
    bool sorted = false;
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      if (result_.shares[unit].job) continue;
      if (!std::exchange(sorted, true)) std::stable_sort(order.begin(), order.end(), before);
      const NodeId& worker = units_[unit].workers.front();
      const auto job = std::find_if(order.begin(), order.end(), [&](size_t candidate) {
        return may_have_(candidate, worker) && rooms_.Take(candidate, worker);
      });
      if (job == order.end()) continue;
      Give(unit, *job, "");
      sorted = false;
    }
  }

  // Moves one unit; false: none is to move.
  bool Balance() {
    std::vector<size_t> order;
    for (size_t job = 0; job < jobs_.size(); ++job) {
      if (result_.whole[job]) order.push_back(job);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return Ratio(a, 0) < Ratio(b, 0); });
    for (auto from = order.rbegin(); from != order.rend(); ++from) {
      const std::optional<size_t> unit = LastExtra(*from);
      if (!unit || !jobs_[*from].started) continue;
      for (const size_t to : order) {
        if (Ratio(to, 0) >= Ratio(*from, 0)) break;
        if (MovesByWeight(*from, to, *unit)) return true;
      }
    }
    return false;
  }

  std::optional<size_t> LastExtra(size_t job) const {
    const auto last = std::find_if(own_[job].rbegin(), own_[job].rend(), [&](size_t unit) {
      return result_.shares[unit].job == job && !in_gang_[unit];
    });
    return last == own_[job].rend() ? std::nullopt : std::optional(*last);
  }

  bool MovesByWeight(size_t from, size_t to, size_t unit) {
    const SharingUnit& moved = units_[unit];
    const auto count = std::ssize(moved.workers);
    const auto workers = static_cast<double>(count);
    const double rounds = std::min(jobs_[from].rounds_left, jobs_[to].rounds_left);
    if (jobs_[from].priority != jobs_[to].priority || Ratio(from, -count) < Ratio(to, count) ||
        !IsWorthChanging({workers, workers * kMoveRounds, rounds}) || Count(to, moved) < count ||
        !rooms_.Take(to, moved.workers.front())) {
      return false;
    }
    Give(unit, to,
         absl::StrCat("job ", jobs_[to].id, " has ", CountText(has_[to], "worker"),
                      " of the same priority, this one ", has_[from], ": their weights are ",
                      jobs_[to].weight, " and ", jobs_[from].weight));
    return true;
  }

  const std::vector<SharingJob>& jobs_;
  const std::vector<SharingUnit>& units_;
  const MayHave& may_have_;
  Rooms& rooms_;
  Division result_;
  std::vector<bool> in_gang_, extra_;     // by unit; extra: beyond the gang of who has it
  std::vector<std::vector<size_t>> own_;  // units, by the job that has them
  std::vector<int64_t> has_;              // workers, by job
};

}  // namespace

Division Divide(const std::vector<SharingJob>& jobs, const std::vector<SharingUnit>& units,
                const MayHave& may_have, Rooms& rooms) {
  return Divider(jobs, units, may_have, rooms).Divide();
}

}  // namespace atl::coord
