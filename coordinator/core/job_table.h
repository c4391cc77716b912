// All jobs, by number and by id. What hands a job out to be changed notes it, so that the end of a
// Step looks at those alone: its cost does not grow with jobs that nothing concerns. Private to the
// core.

#ifndef ATOLL_COORDINATOR_CORE_JOB_TABLE_H_
#define ATOLL_COORDINATOR_CORE_JOB_TABLE_H_

#include <cstdint>
#include <map>
#include <set>

#include "common/ids.h"

namespace atl::coord {

template <class Job>
class JobTable {
 public:
  using Map = std::map<int64_t, Job>;

  bool empty() const { return jobs_.empty(); }
  int64_t next_number() const { return jobs_.empty() ? 1 : jobs_.rbegin()->first + 1; }

  typename Map::const_iterator begin() const { return jobs_.begin(); }
  typename Map::const_iterator end() const { return jobs_.end(); }
  // Iterates over jobs that are to be changed: opens all.
  typename Map::iterator begin() {
    all_opened_ = true;
    return jobs_.begin();
  }
  typename Map::iterator end() { return jobs_.end(); }

  // Null: there is none.
  const Job* Find(int64_t number) const {
    const auto found = jobs_.find(number);
    return found == jobs_.end() ? nullptr : &found->second;
  }
  const Job* Find(const JobId& id) const {
    const auto found = numbers_.find(id);
    return found == numbers_.end() ? nullptr : &jobs_.at(found->second);
  }
  // Finds a job that is to be changed: opens it.
  Job* Find(int64_t number) {
    const auto found = jobs_.find(number);
    if (found == jobs_.end()) return nullptr;
    opened_.insert(number);
    return &found->second;
  }
  Job* Find(const JobId& id) {
    const auto found = numbers_.find(id);
    return found == numbers_.end() ? nullptr : Find(found->second);
  }

  // A new one, or in the place of the one of this number, which has this id.
  Job& Add(int64_t number, const JobId& id) {
    numbers_[id] = number;
    opened_.insert(number);
    return jobs_[number] = Job();
  }
  void Erase(int64_t number, const JobId& id) {
    numbers_.erase(id);
    opened_.erase(number);
    jobs_.erase(number);
  }

  // what(job) of each that was opened since Close. REQUIRES: it opens none.
  template <class Do>
  void ForEachOpened(Do what) {
    VisitOpened(jobs_, what);
  }
  template <class Do>
  void ForEachOpened(Do what) const {
    VisitOpened(jobs_, what);
  }
  void Close() {
    opened_.clear();
    all_opened_ = false;
  }

 private:
  template <class Jobs, class Do>
  void VisitOpened(Jobs& jobs, Do what) const {
    if (all_opened_) {
      for (auto& [number, job] : jobs) what(job);
      return;
    }
    for (const int64_t number : opened_) what(jobs.at(number));
  }

  Map jobs_;
  std::map<JobId, int64_t> numbers_;
  std::set<int64_t> opened_;
  bool all_opened_ = false;
};

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_JOB_TABLE_H_
