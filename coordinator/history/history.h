// The past of all jobs, for the web page and `atoll metrics`. It decides nothing; a history that is
// lost is a chart that is lost.
//
// Bounds: each job keeps at most kHistoryBytesMax; see IslandCurvePoints. Pure: wall time is an
// argument. Not thread-safe.

#ifndef ATOLL_COORDINATOR_HISTORY_HISTORY_H_
#define ATOLL_COORDINATOR_HISTORY_HISTORY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/history/curve.h"
#include "coordinator/history/round_log.h"

namespace atl {

namespace v1 {
class JobHistory;
}

inline constexpr int64_t kHistoryBytesMax = 50'000'000;
inline constexpr size_t kRoundCurvePoints = 4096;
inline constexpr size_t kValidationPoints = 2048;
inline constexpr size_t kNewestRounds = 64;
inline constexpr size_t kLeftMembers = 256;

// Points kept for each of so many islands.
size_t IslandCurvePoints(int64_t islands);

class JobHistory {
 public:
  JobHistory() = default;

  void NoteSubmitted(int64_t unix_ms) { submitted_ms_ = unix_ms; }
  void OnDecision(int64_t unix_ms, const RoundDecided& decided);
  void OnLost(int64_t unix_ms, const MembersLost& lost);
  // True: the job has started, has ended, or was resumed.
  bool OnProgress(int64_t unix_ms, const ProgressRecord& record);
  void OnIslands(int64_t islands);

  // At most `points` of each curve, of the first `islands` islands.
  void Encode(size_t points, size_t islands, v1::JobHistory* message) const;
  // Decodes what Encode wrote without limits; damaged parts are left out.
  static JobHistory Decode(const v1::JobHistory& message);

  int64_t submitted_ms() const { return submitted_ms_; }
  int64_t started_ms() const { return started_ms_; }
  int64_t ended_ms() const { return ended_ms_; }
  double newest_loss() const { return newest_loss_; }
  // Returns the part of the time from the start until `unix_ms` or the job's end in which the job
  // was paused, or ended before it was resumed.
  int64_t PausedMs(int64_t unix_ms) const;

  // Totals of an island's contributions, accepted or not.
  struct Pushed {
    int64_t steps = 0;
    double loss = 0;  // of the newest ones; 0: none
  };
  Pushed PushedBy(IslandId island) const;

  // Mean duration of the newest rounds, without pauses; 0: none is known.
  double MeanRoundSeconds() const;
  // Since the newest decision or the start, without pauses; 0: no round is under way.
  double RoundAgeSeconds(int64_t unix_ms) const;

 private:
  Curve& IslandCurve(IslandId island);
  void NoteState(int64_t unix_ms, JobState state);
  void NoteValidation(int64_t unix_ms, const ProgressRecord& record);

  int64_t submitted_ms_ = 0, started_ms_ = 0, ended_ms_ = 0;
  int64_t paused_ms_ = 0;       // pauses that are over
  int64_t paused_unix_ms_ = 0;  // when the present one began; 0: it is not paused
  int64_t round_begin_ms_ = 0;  // newest decision, or the start; later by the pauses since
  double newest_loss_ = 0;
  size_t island_points_ = kRoundCurvePoints;
  Curve rounds_{kRoundCurvePoints};
  std::map<IslandId, Curve> islands_;
  std::deque<RoundHistory> newest_;
  std::deque<LeftMember> left_;
  std::vector<ValidationPoint> validation_;
};

class History {
 public:
  void On(const JobEvent& event);

  const JobHistory* Find(const JobId& job) const;
  void Restore(const JobId& job, JobHistory history) { jobs_[job] = std::move(history); }

  struct Changes {
    std::set<JobId> now;    // worth storing at once: a job has come or changed its state
    std::set<JobId> later;  // changed otherwise
    std::set<JobId> erased;
  };
  // Since the last call, which forgets them.
  Changes TakeChanges() { return std::exchange(changes_, {}); }

 private:
  std::map<JobId, JobHistory> jobs_;
  Changes changes_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_HISTORY_HISTORY_H_
