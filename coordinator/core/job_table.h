// All jobs, by number and by id. What hands a job out to be changed notes it, so that the end of a
// Step looks at those alone: its cost does not grow with jobs that nothing concerns. Those that
// have ended and owe nothing are archived: no loop over what is under way sees them until one is
// handed out again. Private to the core.

#ifndef ATOLL_COORDINATOR_CORE_JOB_TABLE_H_
#define ATOLL_COORDINATOR_CORE_JOB_TABLE_H_

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/ids.h"

namespace atl::coord {

template <class Job>
class JobTable {
 public:
  using Map = std::map<int64_t, Job>;

  JobTable() = default;
  JobTable(const JobTable&) = delete;  // entries_ point into jobs_
  JobTable& operator=(const JobTable&) = delete;

  bool empty() const { return jobs_.empty(); }
  int64_t next_number() const { return jobs_.empty() ? 1 : jobs_.rbegin()->first + 1; }

  // Jobs that were handed out so far, each time: what events cost beside their own work.
  int64_t visits() const { return visits_; }

  typename Map::const_iterator begin() const {
    visits_ += static_cast<int64_t>(jobs_.size());
    return jobs_.begin();
  }
  typename Map::const_iterator end() const { return jobs_.end(); }
  // Iterates over jobs that are to be changed: opens all.
  typename Map::iterator begin() {
    visits_ += static_cast<int64_t>(jobs_.size());
    for (auto& [number, entry] : entries_) Open(number, entry);
    return jobs_.begin();
  }
  typename Map::iterator end() { return jobs_.end(); }

  // Null: there is none.
  const Job* Find(int64_t number) const {
    const auto found = entries_.find(number);
    return found == entries_.end() ? nullptr : found->second.job;
  }
  const Job* Find(const JobId& id) const {
    const auto found = numbers_.find(id);
    return found == numbers_.end() ? nullptr : Find(found->second);
  }
  // Finds a job of which nothing is to be changed that is stored, or that is looked for at the end
  // of the Step: does not open it.
  Job* Peek(int64_t number) {
    const auto found = entries_.find(number);
    return found == entries_.end() ? nullptr : found->second.job;
  }
  Job* Peek(const JobId& id) {
    const auto found = numbers_.find(id);
    return found == numbers_.end() ? nullptr : Peek(found->second);
  }
  // Finds a job that is to be changed: opens it.
  Job* Find(int64_t number) {
    const auto found = entries_.find(number);
    if (found == entries_.end()) return nullptr;
    ++visits_;
    Open(number, found->second);
    return found->second.job;
  }
  Job* Find(const JobId& id) {
    const auto found = numbers_.find(id);
    return found == numbers_.end() ? nullptr : Find(found->second);
  }

  // A new one, or in the place of the one of this number, which has this id.
  Job& Add(int64_t number, const JobId& id) {
    numbers_[id] = number;
    Job& job = jobs_[number] = Job();
    Entry& entry = entries_[number];
    entry.job = &job;
    Open(number, entry);
    return job;
  }
  void Erase(int64_t number, const JobId& id) {
    numbers_.erase(id);
    entries_.erase(number);
    opened_.erase(number);
    live_.erase(number);
    jobs_.erase(number);
  }

  // what(job) of each that is not archived, in the order of numbers. Opens them. It may add or
  // settle some.
  template <class Do>
  void ForEachLive(Do what) {
    for (auto at = live_.begin(); at != live_.end();) {
      const int64_t number = at->first;
      Open(number, entries_.at(number));
      ++visits_;
      what(*at->second);
      at = live_.upper_bound(number);
    }
  }
  template <class Do>
  void ForEachLive(Do what) const {
    visits_ += static_cast<int64_t>(live_.size());
    for (const auto& [number, job] : live_) what(std::as_const(*job));
  }
  void Archive(int64_t number) {
    live_.erase(number);
    entries_.at(number).live = false;
  }

  // what(job) of each that was opened since Close. REQUIRES: it opens none.
  template <class Do>
  void ForEachOpened(Do what) {
    visits_ += std::ssize(opened_);
    for (const auto& [number, job] : opened_) what(*job);
  }
  template <class Do>
  void ForEachOpened(Do what) const {
    visits_ += std::ssize(opened_);
    for (const auto& [number, job] : opened_) what(std::as_const(*job));
  }
  void Close() {
    closed_ = std::ssize(opened_);
    for (const auto& [number, job] : opened_) entries_.at(number).opened = false;
    opened_.clear();
  }
  // The jobs that the newest Close closed.
  int64_t closed() const { return closed_; }

  // REQUIRES: none is open.
  template <class V>
  void VisitFields(V& v) {
    std::vector<int64_t> live;
    for (const auto& [number, job] : live_) live.push_back(number);
    v(jobs_, live, closed_);
    if (entries_.size() != jobs_.size()) Rebuild(live);  // they were read
  }

 private:
  // An event of one job costs the same however many there are: it is found by hash.
  struct Entry {
    Job* job = nullptr;
    bool opened = false, live = false;  // it is in opened_, in live_
  };

  void Open(int64_t number, Entry& entry) {
    if (!std::exchange(entry.opened, true)) opened_.emplace(number, entry.job);
    if (!std::exchange(entry.live, true)) live_.emplace(number, entry.job);
  }

  // REQUIRES: of jobs that are there, as they were read.
  void Rebuild(const std::vector<int64_t>& live) {
    for (auto& [number, job] : jobs_) {
      numbers_[job.id()] = number;
      entries_[number].job = &job;
    }
    for (const int64_t number : live) {
      const auto found = entries_.find(number);
      if (found == entries_.end()) continue;
      found->second.live = true;
      live_[number] = found->second.job;
    }
  }

  Map jobs_;
  std::unordered_map<JobId, int64_t> numbers_;
  std::unordered_map<int64_t, Entry> entries_;
  std::map<int64_t, Job*> opened_, live_;  // live: not archived
  mutable int64_t visits_ = 0;
  int64_t closed_ = 0;
};

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_JOB_TABLE_H_
