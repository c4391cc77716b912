#include "coordinator/core/sharing/divide.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/estimate.h"
#include "common/plural.h"

namespace atl::coord {
namespace {

constexpr int kMovesMost = 64;     // by weight, at once; the next division has the others
constexpr double kMoveRounds = 2;  // that a worker's move costs: one ends early, one begins late
constexpr double kUrgencyGain = 1.25;  // of the job that gets a worker over that which loses it

class Divider {
 public:
  Divider(const std::vector<SharingJob>& jobs, const std::vector<DeviceQuota>& quotas,
          const std::vector<SharingUnit>& units, const MayHave& may_have, Rooms& rooms)
      : jobs_(jobs),
        quotas_(quotas),
        units_(units),
        may_have_(may_have),
        rooms_(rooms),
        in_gang_(units.size(), false),
        above_quota_(units.size(), false),
        own_(jobs.size()),
        has_(jobs.size(), 0),
        order_(jobs.size()),
        in_gangs_(quotas.size(), 0),
        devices_(quotas.size(), 0) {
    result_.whole.assign(jobs.size(), false);
    result_.beyond_quota.resize(jobs.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return jobs[a].priority > jobs[b].priority; });
    std::vector<int64_t> before(jobs.size(), 0);
    for (const SharingUnit& unit : units) {
      if (unit.job) own_[*unit.job].push_back(result_.shares.size());
      result_.shares.push_back({unit.job, ""});
      extra_.push_back(unit.job && before[*unit.job] >= jobs[*unit.job].needed);
      if (unit.job) before[*unit.job] += std::ssize(unit.workers);
    }
    for (size_t job = 0; job < jobs.size(); ++job) has_[job] = before[job] + jobs[job].away;
    had_ = has_;
    for (const bool extra : {false, true}) MarkAboveQuota(extra);
  }

  Division Divide() {
    int waiting = 0;
    for (const bool beyond : {false, true}) {
      beyond_quotas_ = beyond;
      for (const size_t job : order_) {
        if (jobs_[job].idles || beyond == result_.beyond_quota[job].empty()) continue;
        if (!jobs_[job].started && waiting == kWaitingMost) continue;
        CompleteGang(job);
        const bool later = !beyond && !result_.beyond_quota[job].empty();
        waiting += !jobs_[job].started && !result_.whole[job] && !later;
      }
    }
    GiveIdle();
    for (int moves = 0; moves < kMovesMost && MoveByWork(); ++moves) {
    }
    return std::move(result_);
  }

 private:
  int64_t Count(size_t job, const SharingUnit& unit) const {
    return std::count_if(unit.workers.begin(), unit.workers.end(),
                         [&](const NodeId& worker) { return may_have_(job, worker); });
  }
  // Computes how early it is to end, for the least sum of times; 0: not known.
  double Urgency(size_t job) const {
    return jobs_[job].work_left > 0 ? jobs_[job].weight / jobs_[job].work_left : 0;
  }
  bool Exceeds(size_t job, int64_t more) const {
    const std::optional<size_t>& quota = jobs_[job].quota;
    return quota && devices_[*quota] + more > quotas_[*quota].devices;
  }
  // "vision-* has 12 devices and a quota of 8". REQUIRES: the job has a quota.
  std::string DescribeUse(size_t job, int64_t devices) const {
    const DeviceQuota& quota = quotas_[*jobs_[job].quota];
    return absl::StrCat(quota.owners, " has ", CountText(devices, "device"), " and a quota of ",
                        quota.devices);
  }

  // Marks the units that owners have beyond their quotas: gangs of their first jobs count first,
  // `extra` units last.
  void MarkAboveQuota(bool extra) {
    for (const size_t job : order_) {
      for (const size_t unit : own_[job]) {
        if (!jobs_[job].quota || extra_[unit] != extra) continue;
        above_quota_[unit] = Exceeds(job, units_[unit].devices);
        devices_[*jobs_[job].quota] += units_[unit].devices;
      }
    }
  }

  void Give(size_t unit, size_t job, std::string reason) {
    Share& share = result_.shares[unit];
    const auto workers = std::ssize(units_[unit].workers);
    if (share.job) has_[*share.job] -= workers;
    has_[job] += workers;
    if (share.job && jobs_[*share.job].quota) {
      devices_[*jobs_[*share.job].quota] -= units_[unit].devices;
    }
    if (jobs_[job].quota) devices_[*jobs_[job].quota] += units_[unit].devices;
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
    if (beyond_quotas_ && jobs_[*owner].quota != jobs_[job].quota) return std::nullopt;
    if (jobs_[*owner].idles) return Rank{0, 2, 0, at};
    if (above_quota_[unit] && jobs_[*owner].quota != jobs_[job].quota) {
      return Rank{0, 3, -static_cast<int64_t>(*owner), -at};
    }
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
    if (found < needed || IsBeyondQuota(job, gang)) return rooms_.Restore(job);
    result_.whole[job] = true;
    for (const size_t unit : gang) {
      if (jobs_[job].quota) in_gangs_[*jobs_[job].quota] += units_[unit].devices;
      in_gang_[unit] = true;
      const std::optional<size_t> owner = result_.shares[unit].job;
      if (owner == job) continue;
      Give(unit, job, WhyTaken(job, owner, unit));
    }
  }

  // Returns whether the gang has to wait for those that are within quotas.
  bool IsBeyondQuota(size_t job, const std::vector<size_t>& gang) {
    if (beyond_quotas_ || !jobs_[job].quota) return false;
    int64_t devices = in_gangs_[*jobs_[job].quota];
    for (const size_t unit : gang) devices += units_[unit].devices;
    if (devices <= quotas_[*jobs_[job].quota].devices) return false;
    result_.beyond_quota[job] =
        absl::StrCat("with this job's least number of workers ", DescribeUse(job, devices),
                     ", so it has idle ones and those of the same quota alone");
    return true;
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

  std::string WhyTaken(size_t job, const std::optional<size_t>& owner, size_t unit) const {
    const SharingJob& to = jobs_[job];
    std::string rule = "others have more than they need";
    if (owner && jobs_[*owner].idles) {
      rule = "nothing is decided of this one meanwhile";
    } else if (owner && above_quota_[unit] && jobs_[*owner].quota != to.quota) {
      rule = DescribeUse(*owner, devices_[*jobs_[*owner].quota]);
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
    const auto rank = [&](size_t job) {
      return std::tuple(!result_.whole[job], Exceeds(job, 1), -jobs_[job].priority, -Urgency(job),
                        static_cast<double>(has_[job]) / jobs_[job].weight);
    };
    const auto before = [&](size_t a, size_t b) { return rank(a) < rank(b); };
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
  bool MoveByWork() {
    std::vector<size_t> order;
    for (size_t job = 0; job < jobs_.size(); ++job) {
      if (result_.whole[job] && jobs_[job].work_left > 0) order.push_back(job);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return Urgency(a) > Urgency(b); });
    for (auto from = order.rbegin(); from != order.rend(); ++from) {
      const std::optional<size_t> unit = LastExtra(*from);
      if (!unit || !jobs_[*from].started) continue;
      for (const size_t to : order) {
        if (Urgency(to) < kUrgencyGain * Urgency(*from)) break;
        if (MovesByWork(*from, to, *unit)) return true;
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

  bool MovesByWork(size_t from, size_t to, size_t unit) {
    const SharingUnit& moved = units_[unit];
    const auto count = std::ssize(moved.workers);
    const auto workers = static_cast<double>(count);
    const double faster =
        static_cast<double>(has_[to] + count) / static_cast<double>(std::max<int64_t>(1, had_[to]));
    const double rounds = std::min(jobs_[from].rounds_left, jobs_[to].rounds_left / faster);
    const bool above = jobs_[from].quota != jobs_[to].quota && Exceeds(to, moved.devices);
    if (jobs_[from].priority != jobs_[to].priority || above ||
        !IsWorthChanging({workers, workers * kMoveRounds, rounds}) || Count(to, moved) < count ||
        !rooms_.Take(to, moved.workers.front())) {
      return false;
    }
    Give(unit, to,
         absl::StrCat("job ", jobs_[to].id,
                      " of the same priority is to end first: for its weight ", jobs_[to].weight,
                      " it has ", absl::StrFormat("%.1f", Urgency(to) / Urgency(from)),
                      " times less work left than this one for ", jobs_[from].weight));
    return true;
  }

  const std::vector<SharingJob>& jobs_;
  const std::vector<DeviceQuota>& quotas_;
  const std::vector<SharingUnit>& units_;
  const MayHave& may_have_;
  Rooms& rooms_;
  Division result_;
  std::vector<bool> in_gang_, extra_;     // by unit; extra: beyond the gang of who has it
  std::vector<bool> above_quota_;         // by unit: beyond the quota of who has it
  std::vector<std::vector<size_t>> own_;  // units, by the job that has them
  std::vector<int64_t> has_, had_;        // workers, by job; at first
  std::vector<size_t> order_;             // jobs, by priority and submission
  std::vector<int64_t> in_gangs_;         // devices, by quota
  std::vector<int64_t> devices_;          // of all shares, by quota
  bool beyond_quotas_ = false;            // gangs beyond quotas are completed
};

}  // namespace

Division Divide(const std::vector<SharingJob>& jobs, const std::vector<DeviceQuota>& quotas,
                const std::vector<SharingUnit>& units, const MayHave& may_have, Rooms& rooms) {
  return Divider(jobs, quotas, units, may_have, rooms).Divide();
}

}  // namespace atl::coord
